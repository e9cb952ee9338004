package kafka

import (
	"regexp"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// subscription is the topics that the members of a group consume.
type subscription struct {
	topics   map[string]bool
	patterns []*regexp.Regexp
}

func (s *subscription) has(topic string) bool {
	if s.topics[topic] {
		return true
	}
	for _, p := range s.patterns {
		if p.MatchString(topic) {
			return true
		}
	}
	return false
}

// subscriptionOf reads the members of a group of the new protocol: what they
// subscribe to by name or by pattern (RE2, which the broker matches against whole
// names), and what they are assigned.
func subscriptionOf(members []kmsg.ConsumerGroupDescribeResponseGroupMember) *subscription {
	if len(members) == 0 {
		return nil
	}
	s := &subscription{topics: map[string]bool{}}
	for _, m := range members {
		for _, topic := range m.SubscribedTopics {
			s.topics[topic] = true
		}
		for _, t := range m.Assignment.TopicPartitions {
			s.topics[t.Topic] = true
		}
		if m.SubscribedTopicRegex != nil && *m.SubscribedTopicRegex != "" {
			if p, err := regexp.Compile("^(?:" + *m.SubscribedTopicRegex + ")$"); err == nil {
				s.patterns = append(s.patterns, p)
			}
		}
	}
	return s
}

// classicSubscriptionOf reads the members of a classic group: the metadata that
// each brought when it joined. A group whose members are joining tells none.
func classicSubscriptionOf(members []kmsg.DescribeGroupsResponseGroupMember) *subscription {
	s := &subscription{topics: map[string]bool{}}
	for _, m := range members {
		var joined kmsg.ConsumerMemberMetadata
		if err := joined.ReadFrom(m.ProtocolMetadata); err != nil {
			return nil
		}
		for _, topic := range joined.Topics {
			s.topics[topic] = true
		}
		var assigned kmsg.ConsumerMemberAssignment
		if assigned.ReadFrom(m.MemberAssignment) == nil {
			for _, t := range assigned.Topics {
				s.topics[t.Topic] = true
			}
		}
	}
	if len(members) == 0 {
		return nil
	}
	return s
}
