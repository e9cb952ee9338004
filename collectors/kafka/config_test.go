package kafka_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"oncewatch/collectors/config"
	"oncewatch/collectors/kafka"
	"oncewatch/collectors/kafkaconn"
)

type flags struct {
	ConfigFile config.FileFlag `name:"config.file"`
	Kafka      kafka.Config    `embed:"" prefix:"kafka."`
}

func parse(t *testing.T, file string, args ...string) (kafka.Config, error) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "oncewatch.yml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config.file="+path)
	}
	var f flags
	parser, err := kong.New(&f, append(config.Options("ONCEWATCH"), kong.Bind(&config.Loaded{}))...)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(args)
	return f.Kafka, err
}

func TestDefaultsAreUsable(t *testing.T) {
	c, err := parse(t, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	if c.MaxGroups != 1000 || c.Granularity != kafka.ByPartition || c.TopicConfigInterval != 5*time.Minute {
		t.Errorf("defaults: %+v", c)
	}
}

func TestEverySettingFromFlagEnvironmentAndFile(t *testing.T) {
	got, err := parse(t, `
kafka:
  brokers: [a:1, "b:2"]
  tls: {enabled: true, server-name: kafka}
  sasl:
    mechanism: OAUTHBEARER
    oauth-token-url: https://idp/token
    oauth-scopes: [x, y]
`, "--kafka.sasl.oauth-client-id=me", "--kafka.sasl.oauth-client-secret=x", "--kafka.topic-config-interval=1d")
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got.Brokers) != "[a:1 b:2]" || !got.TLS.Enabled || got.TLS.ServerName != "kafka" || got.SASL.OAuthTokenURL != "https://idp/token" ||
		fmt.Sprint(got.SASL.OAuthScopes) != "[x y]" || got.SASL.OAuthClientID != "me" || got.TopicConfigInterval != 24*time.Hour {
		t.Errorf("got %+v", got)
	}
	t.Setenv("ONCEWATCH_KAFKA_SASL_PASSWORD", "hunter2")
	t.Setenv("ONCEWATCH_KAFKA_SASL_USERNAME", "u")
	t.Setenv("ONCEWATCH_KAFKA_SASL_MECHANISM", kafkaconn.Plain)
	t.Setenv("ONCEWATCH_KAFKA_TLS_ENABLED", "true")
	t.Setenv("ONCEWATCH_KAFKA_TLS_INSECURE_SKIP_VERIFY", "true")
	if got, err = parse(t, ""); err != nil || got.SASL.Password.Reveal() != "hunter2" || !got.TLS.InsecureSkipVerify {
		t.Errorf("environment: %+v, %v", got, err)
	}
}

// Expressions are anchored RE2, whichever way they come in, and a comma does not
// split one.
func TestExpressions(t *testing.T) {
	const expression, exclude = `a\.b|c{1,2},d`, `c,d`
	matches := map[string]bool{"a.b": true, "aXb": false, "xa.b": false, "a.bx": false, "cc,d": true, "c,d": false, "ccc,d": false}
	set := map[string]func(t *testing.T) (kafka.Config, error){
		"flag": func(t *testing.T) (kafka.Config, error) {
			return parse(t, "", "--kafka.topic="+expression, "--kafka.topic-exclude="+exclude)
		},
		"environment": func(t *testing.T) (kafka.Config, error) {
			t.Setenv("ONCEWATCH_KAFKA_TOPIC", expression)
			t.Setenv("ONCEWATCH_KAFKA_TOPIC_EXCLUDE", exclude)
			return parse(t, "")
		},
		"file": func(t *testing.T) (kafka.Config, error) {
			return parse(t, "kafka:\n  topic: '"+expression+"'\n  topic-exclude: '"+exclude+"'\n")
		},
	}
	for way, parse := range set {
		t.Run(way, func(t *testing.T) {
			c, err := parse(t)
			if err != nil {
				t.Fatal(err)
			}
			b := watch(t, cluster(t).ListenAddrs(), func(of *kafka.Config) { of.Topic, of.TopicExclude = c.Topic, c.TopicExclude })
			b.client.Watch(nil, slices.Collect(maps.Keys(matches)))
			b.mustPoll()
			for name, want := range matches {
				if _, got := b.topics.Latest().(*kafka.Topics).Topics[name]; got != want {
					t.Errorf("%q: %v, want %v", name, got, want)
				}
			}
		})
	}
}

func TestMistakesNameTheFlagAndTheRemedy(t *testing.T) {
	for _, tt := range []struct {
		change func(*kafka.Config)
		want   []string
	}{
		{func(c *kafka.Config) { c.Brokers = nil }, []string{"--kafka.brokers", "HOST:PORT"}},
		{func(c *kafka.Config) { c.Group = "a(" }, []string{"--kafka.group:", "a(", "RE2"}},
		{func(c *kafka.Config) { c.TopicExclude = "(?=x)" }, []string{"--kafka.topic-exclude:", "(?=", "RE2"}},
		{func(c *kafka.Config) { c.Granularity = "broker" }, []string{"--kafka.granularity", "partition or topic"}},
		{func(c *kafka.Config) { c.MaxGroups = 0 }, []string{"--kafka.max-groups", "1 or more"}},
		{func(c *kafka.Config) { c.TopicConfigInterval = 0 }, []string{"--kafka.topic-config-interval", "1s or more"}},
	} {
		c, err := parse(t, "")
		if err != nil {
			t.Fatal(err)
		}
		tt.change(&c)
		err = c.Validate()
		if err == nil {
			t.Errorf("%v: no error for %+v", tt.want, c)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q tells the secret", err)
		}
		if _, newErr := kafka.New(c, nil, nil); newErr == nil || newErr.Error() != err.Error() {
			t.Errorf("New: %v, Validate: %v", newErr, err)
		}
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	c, err := parse(t, "", "--kafka.sasl.mechanism=PLAIN", "--kafka.sasl.username=u", "--kafka.sasl.password=hunter2")
	if err != nil {
		t.Fatal(err)
	}
	c.SASL.OAuthClientSecret = "hunter2"
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", c, "secret", c.SASL.Password)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "config", c, "secret", c.SASL.Password)
	j, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	y, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), fmt.Sprintf("%q %s %v %x", c.SASL.Password, c.SASL.Password, &c, c.SASL.Password), string(j), string(y), log.String()} {
		if strings.Contains(text, "hunter2") || strings.Contains(text, fmt.Sprintf("%x", "hunter2")) {
			t.Errorf("told in %s", text)
		}
	}
	if c.SASL.Password.Reveal() != "hunter2" {
		t.Error("the secret itself is lost")
	}
}
