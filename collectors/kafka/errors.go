package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncewatch/collectors/kafkaconn"
	"oncewatch/collectors/poll"
)

// kinds tells Kafka's error codes apart for whoever reads the counter.
var kinds = map[error]string{
	kerr.TopicAuthorizationFailed:   "denied",
	kerr.GroupAuthorizationFailed:   "denied",
	kerr.ClusterAuthorizationFailed: "denied",

	kerr.LeaderNotAvailable:    "leaderless",
	kerr.NotLeaderForPartition: "leaderless",
	kerr.ReplicaNotAvailable:   "leaderless",
	kerr.ListenerNotFound:      "leaderless",
	kerr.FencedLeaderEpoch:     "leaderless",
	kerr.UnknownLeaderEpoch:    "leaderless",
	kerr.OffsetNotAvailable:    "leaderless",

	kerr.CoordinatorLoadInProgress: "loading",
	kerr.CoordinatorNotAvailable:   "loading",
	kerr.NotCoordinator:            "loading",
	kerr.UnstableOffsetCommit:      "loading",

	kerr.UnknownTopicOrPartition: "missing",
	kerr.UnknownTopicID:          "missing",
	kerr.GroupIDNotFound:         "missing",

	kerr.RequestTimedOut:             "timeout",
	kerr.SaslAuthenticationFailed:    "auth",
	kerr.UnsupportedSaslMechanism:    "auth",
	kerr.IllegalSaslState:            "auth",
	kerr.UnsupportedVersion:          "unsupported",
	kerr.UnknownServerError:          "failed",
	kerr.KafkaStorageError:           "failed",
	kerr.InvalidTopicException:       "malformed",
	kerr.UnsupportedForMessageFormat: "unsupported",
}

// remedies follow an error where there is one thing to do.
var remedies = map[string]string{
	"denied":      "grant DESCRIBE on it (DESCRIBE_CONFIGS for configurations), or leave it out with --kafka.group-exclude or --kafka.topic-exclude",
	"missing":     "it does not exist on this cluster",
	"auth":        "see --kafka.sasl.* and --kafka.tls.*",
	"unsupported": "oncewatch needs Apache Kafka 3.0 or newer, or what speaks its protocol",
}

// codeError is the error of a response's code; nil for 0.
func codeError(code int16) error { return kerr.ErrorForCode(code) }

// kindOf names the kind of an error from a broker or on the way to one.
func kindOf(err error) string {
	var known *poll.KindError
	if errors.As(err, &known) {
		return known.Kind
	}
	var auth *kafkaconn.AuthError
	if errors.As(err, &auth) {
		return "auth"
	}
	var code *kerr.Error
	if errors.As(err, &code) {
		if kind, ok := kinds[code]; ok {
			return kind
		}
		return "failed"
	}
	var (
		op        *net.OpError
		record    tls.RecordHeaderError
		verify    *tls.CertificateVerificationError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		firstRead *kgo.ErrFirstReadEOF
		netErr    net.Error
	)
	switch {
	// "remote error" is a TLS alert: the broker wants another certificate.
	case errors.As(err, &op) && op.Op == "remote error", errors.As(err, &record), errors.As(err, &verify), errors.As(err, &authority), errors.As(err, &host), errors.As(err, &firstRead):
		return "auth"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.As(err, &netErr):
		if netErr.Timeout() {
			return "timeout"
		}
		return "unreachable"
	case unreachable(err):
		return "unreachable"
	}
	return "unsupported" // what remains: the broker does not speak the request
}

// unreachable says whether the error is about the broker and not about the one
// request.
func unreachable(err error) bool {
	var (
		netErr    net.Error
		code      *kerr.Error
		firstRead *kgo.ErrFirstReadEOF
		known     *poll.KindError
	)
	return kgo.IsRetryableBrokerErr(err) || errors.As(err, &netErr) || errors.As(err, &firstRead) || errors.As(err, &known) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &code) // of the SASL handshake: responses' own codes do not come this way
}

// wrap gives an error its kind, and the remedy where there is one.
func wrap(err error) *poll.KindError {
	kind := kindOf(err)
	remedy := remedies[kind]
	if kind == "unreachable" && errors.Is(err, io.EOF) {
		remedy = "the broker hangs up: see whether this listener wants TLS (--kafka.tls.enabled), and accepts --kafka.sasl.mechanism"
	}
	if remedy != "" {
		err = fmt.Errorf("%w: %s", err, remedy)
	}
	return &poll.KindError{Kind: kind, Err: err}
}

func problem(entity string, err error) poll.Problem {
	w := wrap(err)
	return poll.Problem{Kind: w.Kind, Entity: entity, Err: w.Err}
}
