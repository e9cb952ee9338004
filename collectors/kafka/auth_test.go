package kafka_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncewatch/collectors/config"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/kafkaconn"
	"oncewatch/deploy/kafkaserver"
	"oncewatch/deploy/testenv"
)

// unsecured is a token as Kafka's development validator accepts it.
func unsecured(user string, life time.Duration) string {
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	now := time.Now()
	return encode(`{"alg":"none"}`) + "." + encode(fmt.Sprintf(`{"sub":%q,"iat":%d,"exp":%d}`, user, now.Unix(), now.Add(life).Unix())) + "."
}

// A real broker with mutual TLS, every SASL mechanism and access rules: each
// way in, each way not, and what a denied topic costs.
func TestRealAuthentication(t *testing.T) {
	t.Parallel()
	ca := testenv.NewAuthority(t)
	for _, name := range []string{"broker", "oncewatch", "renewed"} {
		ca.Sign(name)
	}
	const login = "org.apache.kafka.common.security."
	s := testenv.KafkaServer(t, kafkaserver.Options{Protocol: "SASL_SSL", Config: map[string]string{
		"log.retention.minutes": "3", "log.retention.hours": "5", // for byDefault
		"ssl.keystore.type": "PEM", "ssl.keystore.location": ca.Path("broker", "pem"),
		"ssl.truststore.type": "PEM", "ssl.truststore.location": ca.Path("authority", "crt"),
		"listener.name.client.ssl.client.auth":                "required",
		"sasl.enabled.mechanisms":                             "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		"listener.name.client.plain.sasl.jaas.config":         login + `plain.PlainLoginModule required user_watcher="hunter2";`,
		"listener.name.client.scram-sha-256.sasl.jaas.config": login + "scram.ScramLoginModule required;",
		"listener.name.client.scram-sha-512.sasl.jaas.config": login + "scram.ScramLoginModule required;",
		"listener.name.client.oauthbearer.sasl.jaas.config":   login + "oauthbearer.OAuthBearerLoginModule required;",
		"listener.name.client.connections.max.reauth.ms":      "60000",
		"authorizer.class.name":                               "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":                                         "User:ANONYMOUS", // the plain listener's
	}})
	inner := watch(t, s.Internal())
	byDefault(t, s, inner, 180)

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, admin, good := real(t, s, "good", 1, nil)
	_, _, bad := real(t, s, "bad", 1, nil)
	for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		if _, err := admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{User: "watcher", Mechanism: mechanism, Iterations: 4096, Password: "hunter2"}}); err != nil {
			t.Fatal(err)
		}
	}
	// All that the exporter needs, on one topic and one group.
	rules := kadm.NewACLs().Allow("User:watcher").AllowHosts().Topics(good).Groups("ledger").
		Operations(kadm.OpDescribe, kadm.OpDescribeConfigs).ResourcePatternType(kadm.ACLPatternLiteral)
	if _, err := admin.CreateACLs(ctx, rules); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{good, bad} {
		commitAt(t, admin, "ledger", topic, 0, 0)
	}
	commitAt(t, admin, "hidden", good, 0, 0)

	var tokens atomic.Int32
	life, reject := time.Hour, false
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		tokens.Add(1)
		w.Header().Set("Content-Type", "application/json")
		token := unsecured("watcher", life)
		if reject {
			token = unsecured("watcher", -time.Hour)
		}
		_, _ = fmt.Fprintf(w, `{"access_token": %q, "token_type": "bearer", "expires_in": %d}`, token, int(life.Seconds()))
	}))
	defer idp.Close()
	defer http.DefaultClient.CloseIdleConnections()

	mutual := func(c *kafka.Config) {
		c.TLS = kafkaconn.TLS{Enabled: true, CAFile: ca.Path("authority", "crt"), CertFile: ca.Path("oncewatch", "crt"), KeyFile: ca.Path("oncewatch", "key")}
	}
	password := func(mechanism, password string) func(*kafka.Config) {
		return func(c *kafka.Config) {
			c.SASL = kafkaconn.SASL{Mechanism: mechanism, Username: "watcher", Password: config.Secret(password)}
		}
	}
	oauth := func(c *kafka.Config) {
		c.SASL = kafkaconn.SASL{Mechanism: kafkaconn.OAuthBearer, OAuthTokenURL: idp.URL, OAuthClientID: "me", OAuthClientSecret: "hunter2"}
	}
	for name, way := range map[string]func(*kafka.Config){
		kafkaconn.Plain: password(kafkaconn.Plain, "hunter2"), kafkaconn.ScramSHA256: password(kafkaconn.ScramSHA256, "hunter2"), kafkaconn.ScramSHA512: password(kafkaconn.ScramSHA512, "hunter2"), kafkaconn.OAuthBearer: oauth,
	} {
		t.Run(name, func(t *testing.T) {
			b := watch(t, s.Brokers(), mutual, way)
			b.client.Watch(nil, []string{bad, good})
			p := b.until("the allowed topic", has(lag("consumer_lag", "ledger", good, 0)))
			p.want(t, fmt.Sprintf("kafka_topic_retention_seconds{topic=%q}", good), 180)
			for series := range p {
				if strings.Contains(series, bad) || strings.Contains(series, "hidden") {
					t.Errorf("%s is seen without a right to", series)
				}
			}
			if !strings.Contains(b.log.String(), "TOPIC_AUTHORIZATION_FAILED") || !strings.Contains(b.log.String(), "topic "+bad) {
				t.Errorf("the log does not name the denied topic:\n%s", b.log)
			}
			if strings.Contains(b.log.String(), "hunter2") {
				t.Errorf("the log tells the secret:\n%s", b.log)
			}
		})
	}
	for name, ways := range map[string][]func(*kafka.Config){
		"wrong password":        {mutual, password(kafkaconn.Plain, "hunter3")},
		"wrong SCRAM password":  {mutual, password(kafkaconn.ScramSHA512, "hunter3")},
		"no client certificate": {mutual, password(kafkaconn.Plain, "hunter2"), func(c *kafka.Config) { c.TLS.CertFile, c.TLS.KeyFile = "", "" }},
		"unknown authority":     {mutual, password(kafkaconn.Plain, "hunter2"), func(c *kafka.Config) { c.TLS.CAFile = "" }},
		"wrong server name":     {mutual, password(kafkaconn.Plain, "hunter2"), func(c *kafka.Config) { c.TLS.ServerName = "another" }},
		"no TLS":                {password(kafkaconn.Plain, "hunter2")},
		"no SASL":               {mutual},
	} {
		t.Run(name, func(t *testing.T) {
			b := watch(t, s.Brokers(), ways...)
			b.poll()
			err := b.groups.Status().Err
			if err == nil {
				t.Fatal("was let in")
			}
			if !strings.Contains(err.Error(), s.Brokers()[0]) || strings.Contains(err.Error(), "hunter") {
				t.Errorf("error: %v", err)
			}
			if b.scrape()[`oncewatch_errors_total{collector="groups",kind="auth"}`] != 1 && name != "no SASL" && name != "no TLS" {
				t.Errorf("not counted as auth: %v", err)
			}
		})
	}
	t.Run("a rotated password and client certificate are read again", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "password")
		write := func(secret string) {
			if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("hunter2")
		b := watch(t, s.Brokers(), mutual, func(c *kafka.Config) {
			c.SASL = kafkaconn.SASL{Mechanism: kafkaconn.ScramSHA512, Username: "watcher", PasswordFile: file}
		})
		b.until("the topic", has(lag("consumer_lag", "ledger", good, 0)))
		if _, err := admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{User: "watcher", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: "hunter4"}}); err != nil {
			t.Fatal(err)
		}
		write("hunter4")
		for _, what := range []string{"crt", "key"} {
			if err := os.Rename(ca.Path("renewed", what), ca.Path("oncewatch", what)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		b.poll()
		if err := s.StartAgain(ctx); err != nil {
			t.Fatal(err)
		}
		b.clock.add(4 * interval) // what was seen before is stale
		b.until("the topic again", has(lag("consumer_lag", "ledger", good, 0)))
		if lines := strings.Count(b.log.String(), `msg="cannot read" collector=groups entity=groups`); lines != 1 {
			t.Errorf("%d lines that the broker was away, want 1:\n%s", lines, b.log)
		}
		if strings.Contains(b.log.String(), "hunter") {
			t.Errorf("the log tells the secret:\n%s", b.log)
		}
	})
	// The broker ends a session with its token; another token is
	// fetched before, and one that the broker does not accept is not kept.
	t.Run("tokens are renewed", func(t *testing.T) {
		life = 6 * time.Second
		b := watch(t, s.Brokers(), mutual, oauth)
		b.clock.follow()
		before := tokens.Load()
		b.until("a second token", func(page) bool {
			if err := b.groups.Status().Err; err != nil {
				t.Fatal(err)
			}
			return tokens.Load() >= before+2
		})
		reject = true
		b.until("a rejected token", func(p page) bool { return p[`oncewatch_collector_success{collector="groups"}`] == 0 })
		reject = false
		before = tokens.Load()
		b.poll()
		b.poll()
		b.scrape().want(t, `oncewatch_collector_success{collector="groups"}`, 1)
		if tokens.Load() == before {
			t.Error("the rejected token is used on")
		}
	})
}
