package checklist

import "fmt"

// leftTopic says that a group no longer consumes a topic: what it left there
// grows, and in the end expires, and is nobody's loss.
func (s subject) leftTopic() bool {
	return s.commits != nil && s.commits.Subscribed.OK && !s.commits.Subscribed.Value
}

// orLeft judges only what the group still consumes.
func orLeft(judge func(subject) Line) func(subject) Line {
	return func(s subject) Line { return s.unlessLeft(judge(s)) }
}

// unlessLeft excuses what was found on a topic that the group has left.
func (s subject) unlessLeft(l Line) Line {
	if l.Verdict != Warning && l.Verdict != Violated || !s.leftTopic() {
		return l
	}
	l.Verdict, l.Remedy = OK, ""
	l.Meaning = fmt.Sprintf("The group's members no longer consume the topic: what is left there concerns it no more. (%s)", l.Meaning)
	return l
}
