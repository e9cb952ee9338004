package kafkaconn

import (
	"encoding/json"
	"errors"
	"net/textproto"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncewatch/deploy/testenv"
)

// login connects to a broker that takes every login, and returns the mechanism
// and the bytes it was given.
func login(t *testing.T, sasl SASL) (mechanism, bytes string, err error) {
	t.Helper()
	broker, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	given := make(chan [2]string, 8)
	broker.ControlKey(int16(kmsg.SASLHandshake), func(r kmsg.Request) (kmsg.Response, error, bool) {
		broker.KeepControl()
		mechanism = r.(*kmsg.SASLHandshakeRequest).Mechanism
		resp := r.ResponseKind().(*kmsg.SASLHandshakeResponse)
		resp.SupportedMechanisms = []string{mechanism}
		return resp, nil, true
	})
	broker.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
		broker.KeepControl()
		given <- [2]string{mechanism, string(r.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes)}
		resp := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		if mechanism == MSKIAM {
			resp.SASLAuthBytes = []byte(`{"version":"2020_10_22"}`)
		}
		return resp, nil, true
	})
	opts, err := Config{Brokers: broker.ListenAddrs(), SASL: sasl}.Options(time.Second, nil)
	if err != nil {
		return "", "", err
	}
	client, err := kgo.NewClient(append(opts, kgo.RequestRetries(0))...)
	if err != nil {
		return "", "", err
	}
	defer client.Close()
	if err := client.Ping(t.Context()); err != nil {
		return "", "", err
	}
	got := <-given
	return got[0], got[1], nil
}

// MSK is given what IAM signs for its host, with the credentials of the pod.
func TestMSKLogin(t *testing.T) {
	cloud := testenv.NewCloud(t, time.Hour)
	mechanism, bytes, err := login(t, SASL{Mechanism: MSKIAM})
	if err != nil || mechanism != "AWS_MSK_IAM" {
		t.Fatalf("%s, %v", mechanism, err)
	}
	var sent map[string]string
	if err := json.Unmarshal([]byte(bytes), &sent); err != nil {
		t.Fatalf("%s: %v", bytes, err)
	}
	if sent["host"] != "127.0.0.1" || sent["version"] != "2020_10_22" || sent["action"] != "kafka-cluster:Connect" || sent["user-agent"] != "oncewatch" {
		t.Errorf("%v", sent)
	}
	signed := url.Values{}
	for name, value := range sent {
		switch {
		case name == "action":
			signed.Set("Action", value)
		case name == "x-amz-signedheaders":
			signed.Set("X-Amz-SignedHeaders", value)
		case strings.HasPrefix(name, "x-amz-"):
			signed.Set(textproto.CanonicalMIMEHeaderKey(name), value)
		}
	}
	testenv.CheckAWSSignature(t, signed, "127.0.0.1", "kafka-cluster", "eu-central-1")

	cloud.Break()
	var auth *AuthError
	if _, _, err := login(t, SASL{Mechanism: MSKIAM}); !errors.As(err, &auth) || strings.Contains(err.Error(), testenv.CloudSecretKey) {
		t.Errorf("without an identity: %v", err)
	}
}

// Event Hubs is given a token of Entra ID for its own namespace.
func TestEventHubsLogin(t *testing.T) {
	testenv.NewCloud(t, time.Hour)
	mechanism, bytes, err := login(t, SASL{Mechanism: OAuthBearer, OAuthTokenFrom: "azure"})
	if want := "n,,\x01auth=Bearer " + testenv.CloudToken + "https://127.0.0.1\x01\x01"; err != nil || mechanism != OAuthBearer || bytes != want {
		t.Errorf("%s %q, %v; want %q", mechanism, bytes, err, want)
	}
}

// A command's output is the token of a connection.
func TestTokenCommandLogin(t *testing.T) {
	path := t.TempDir() + "/token"
	if err := os.WriteFile(path, []byte("from-a-command\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, bytes, err := login(t, SASL{Mechanism: OAuthBearer, OAuthTokenCommand: "cat " + path})
	if want := "n,,\x01auth=Bearer from-a-command\x01\x01"; err != nil || bytes != want {
		t.Errorf("%q, %v; want %q", bytes, err, want)
	}
}

// Settings that do not go together are refused by name.
func TestCloudLoginsThatCannotBe(t *testing.T) {
	for want, sasl := range map[string]SASL{
		"--kafka.sasl.username does not go with":            {Mechanism: MSKIAM, Username: "u"},
		"--kafka.sasl.oauth-token-from: \"aws\"":            {Mechanism: OAuthBearer, OAuthTokenFrom: "aws"},
		"--kafka.sasl.oauth-token-command does not go with": {Mechanism: OAuthBearer, OAuthTokenFrom: "azure", OAuthTokenCommand: "cat t"},
		"is set but no mechanism":                           {OAuthTokenCommand: "cat t"},
	} {
		if err := sasl.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error with %s", sasl, err, want)
		}
	}
}
