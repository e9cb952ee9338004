//go:build race

package kafka_test

// starved: the race detector slows consumers and broker so much that members
// come late and are described again in a poll that would not ask otherwise.
const starved = true
