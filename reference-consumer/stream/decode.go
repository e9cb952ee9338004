package stream

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/reference-consumer/header"
	"oncewatch/reference-consumer/inbox"
)

// Decode makes an event of a record whose id is in the header event_id.
func Decode(r *kgo.Record) inbox.Event {
	ev := event(r)
	for _, h := range r.Headers {
		if h.Key == header.EventID {
			ev.ID = string(h.Value)
		}
	}
	return withID(ev)
}

// DecodeKey makes an event of a record whose key is the event's id.
func DecodeKey(r *kgo.Record) inbox.Event {
	ev := event(r)
	ev.ID = string(r.Key)
	return withID(ev)
}

func event(r *kgo.Record) inbox.Event {
	ev := inbox.Event{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Time: r.Timestamp, Key: r.Key, Value: r.Value}
	if len(r.Headers) > 0 {
		ev.Headers = make([]inbox.Header, len(r.Headers))
	}
	for i, h := range r.Headers {
		ev.Headers[i] = inbox.Header{Key: h.Key, Value: h.Value}
	}
	return ev
}

func withID(ev inbox.Event) inbox.Event {
	if ev.ID == "" {
		ev.Err = errors.New("the record carries no event id (header event_id; --event-id=key takes the record's key)")
	}
	return ev
}
