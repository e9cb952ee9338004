//go:build !race

package kafka_test

const starved = false
