package kafka

import (
	"context"
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// transactionsTopic is made by Apache Kafka for the first transaction there
// ever was.
const transactionsTopic = "__transaction_state"

// noTransactions says that no transaction was ever written on the cluster: it is
// Apache Kafka, whose metadata.version nobody else has, and says that there is
// no topic for their states. Where that topic may not be described, it says that
// it is denied, and nothing is known.
func (c *Client) noTransactions(ctx context.Context, r *requester, meta metadata) bool {
	if !errors.Is(meta.topics[transactionsTopic].err, kerr.UnknownTopicOrPartition) {
		return false
	}
	if !c.memory.askedFeatures {
		i := slices.IndexFunc(meta.brokers, func(b int32) bool { return !r.isDown(b) })
		if i < 0 {
			return false
		}
		req := kmsg.NewPtrApiVersionsRequest()
		req.ClientSoftwareName, req.ClientSoftwareVersion = "oncewatch", "1"
		for _, resp := range ask[*kmsg.ApiVersionsResponse](ctx, r, map[int32]kmsg.Request{meta.brokers[i]: req}).ok {
			c.memory.askedFeatures = true
			c.memory.apache = slices.ContainsFunc(resp.FinalizedFeatures, func(f kmsg.ApiVersionsResponseFinalizedFeature) bool {
				return f.Name == "metadata.version"
			})
		}
	}
	return c.memory.apache
}
