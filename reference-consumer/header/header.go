// Package header names the record headers that producers and consumers share.
package header

const (
	// EventID is assigned by the producer and the same at every delivery.
	EventID = "event_id"
	// Producer and Sequence number a producer's records in each partition, from
	// 1. Gaps in offsets mean nothing (compaction and aborted transactions leave
	// them); gaps in these numbers are lost events.
	Producer = "producer_id"
	Sequence = "producer_sequence"
)
