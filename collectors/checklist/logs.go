package checklist

import (
	"fmt"

	"oncewatch/collectors/logsample"
	"oncewatch/collectors/number"
)

// logFields is line 6: a person who looks for one event finds it by its id, its
// group and its position. It is judged from a sample of the log.
func logFields(s subject) Line {
	l := Line{Rule: "log-fields", Number: 6, Title: "Does every log line of an event carry event_id and consumer_group?", Threshold: "no line without", Verdict: Unknown}
	const sample = "Give a sample of the consumer's log: kubectl logs … | oncewatch check --logs=-"
	logs := s.facts.Logs
	if logs == nil {
		l.Outside = true
		l.Threshold = ""
		l.Unasked = "give a sample of the consumer's log to the audit: kubectl logs … | oncewatch check --logs=-"
		l.Meaning = "Cannot be seen from here: logs are not read."
		l.Remedy = sample
		return l
	}
	var all logsample.Count
	var groupless int64
	for k, c := range logs.Events {
		if (k.Group == s.group || k.Group == "") && (k.Topic == s.topic || k.Topic == "" || s.topic == "") {
			all.Lines += c.Lines
			all.NoEventID += c.NoEventID
			all.NoPosition += c.NoPosition
			if k.Group == "" {
				groupless += c.Lines
			}
		}
	}
	l.Evidence = append(l.Evidence, fmt.Sprintf("%s in the sample, %s of them in JSON or logfmt, %s about events of this group and topic", number.Of(max(0, logs.Lines), "line"), number.Grouped(max(0, logs.Structured)), number.Grouped(max(0, all.Lines))))
	if logs.Cut {
		l.Evidence = append(l.Evidence, "the log goes on beyond the sample")
	}
	if logs.TooLong > 0 {
		l.Evidence = append(l.Evidence, fmt.Sprintf("%s too long to be read", number.Of(max(0, logs.TooLong), "line")))
	}
	if all.Lines <= 0 {
		l.Meaning = "No line of the sample is about an event of this group and topic."
		if logs.Structured <= 0 {
			l.Meaning += " None is in JSON or logfmt: an event cannot be looked for by a field."
		}
		l.Remedy = sample + "; write JSON or logfmt with event_id, consumer_group, topic, partition and offset."
		return l
	}
	l.Value = fmt.Sprintf("%s without event_id, %s without consumer_group, %s without topic, partition or offset",
		number.Grouped(max(0, all.NoEventID)), number.Grouped(max(0, groupless)), number.Grouped(max(0, all.NoPosition)))
	l.Remedy = "Set the fields once for all that is logged while an event is handled: MDC in Java, contextvars or a LoggerAdapter in Python, a child logger in Node, a logger with attributes in Go."
	switch {
	case all.NoEventID > 0 || groupless > 0:
		l.Verdict = Violated
		l.Meaning = "An event that is looked for is not found in some of its lines, or not by its group."
	case all.NoPosition > 0:
		l.Verdict = Warning
		l.Meaning = "Lines lack the position: what a replay would read again cannot be told from the log."
	default:
		l.Verdict, l.Remedy = OK, ""
		l.Meaning = "Every line about an event in the sample carries event, group and position."
	}
	return l
}
