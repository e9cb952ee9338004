package kafka

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The granularities of per-partition metrics.
const (
	ByPartition = "partition"
	ByTopic     = "topic"
)

// Config is the flags for Kafka, embedded with prefix "kafka.".
type Config struct {
	Brokers []string `default:"localhost:9092" placeholder:"HOST:PORT" help:"Addresses of one or more brokers to start from."`

	Group        string `placeholder:"REGEX" help:"Consumer groups to watch: a fully anchored RE2 expression. Default: all groups that have markers or commits."`
	GroupExclude string `placeholder:"REGEX" help:"Consumer groups to leave out, of those --kafka.group lets in; fully anchored."`
	Topic        string `placeholder:"REGEX" help:"Topics to watch: a fully anchored RE2 expression. Default: all topics the groups consume."`
	TopicExclude string `placeholder:"REGEX" help:"Topics to leave out, of those --kafka.topic lets in; fully anchored."`

	Granularity string `default:"partition" enum:"partition,topic" help:"Labels of lag and offsets: ${enum}. With topic there is no partition label; lag and expired records are summed, ages are the worst."`
	MaxGroups   int    `default:"1000" help:"Watch at most this many groups, those with markers first, then by name; how many are left out is exported."`

	TopicConfigInterval time.Duration `default:"5m" help:"How often topic configurations are read."`

	TLS  TLS  `embed:"" prefix:"tls."`
	SASL SASL `embed:"" prefix:"sasl."`
}

// TLS is the flags for encrypted connections to the brokers.
type TLS struct {
	Enabled            bool   `help:"Connect to the brokers with TLS."`
	CAFile             string `name:"ca-file" placeholder:"FILE" help:"PEM file of the authorities that sign the brokers' certificates. Default: the system's."`
	CertFile           string `placeholder:"FILE" help:"PEM file of the client certificate, for mutual TLS. Read again for every connection."`
	KeyFile            string `placeholder:"FILE" help:"PEM file of the client certificate's key."`
	ServerName         string `placeholder:"NAME" help:"Name to expect in the brokers' certificates. Default: the host they are reached by."`
	InsecureSkipVerify bool   `help:"Accept any certificate of a broker. For tests only."`
}

// The SASL mechanisms.
const (
	Plain       = "PLAIN"
	ScramSHA256 = "SCRAM-SHA-256"
	ScramSHA512 = "SCRAM-SHA-512"
	OAuthBearer = "OAUTHBEARER"
)

var mechanisms = []string{Plain, ScramSHA256, ScramSHA512, OAuthBearer}

// SASL is the flags for authentication with the brokers.
type SASL struct {
	Mechanism    string `placeholder:"NAME" help:"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER. Default: no authentication."`
	Username     string `help:"User of PLAIN and SCRAM."`
	Password     Secret `help:"Password of PLAIN and SCRAM. Better set by environment, file or --kafka.sasl.password-file."`
	PasswordFile string `placeholder:"FILE" help:"File with the password, read again for every connection."`

	OAuthTokenURL         string   `name:"oauth-token-url" placeholder:"URL" help:"Token endpoint of OAUTHBEARER (grant type client_credentials)."`
	OAuthClientID         string   `name:"oauth-client-id" help:"Client id at the token endpoint."`
	OAuthClientSecret     Secret   `name:"oauth-client-secret" help:"Client secret at the token endpoint."`
	OAuthClientSecretFile string   `name:"oauth-client-secret-file" placeholder:"FILE" help:"File with the client secret, read again for every token."`
	OAuthScopes           []string `name:"oauth-scopes" help:"Scopes to ask the token endpoint for."`
	OAuthTokenFile        string   `name:"oauth-token-file" placeholder:"FILE" help:"File with a token that something else renews, read again for every connection; instead of a token endpoint."`
}

// Validate says what in the configuration cannot work, by the flag's name. It
// reads the files that the configuration names.
func (c Config) Validate() error {
	if len(c.Brokers) == 0 {
		return fmt.Errorf("--kafka.brokers: no address given: want HOST:PORT of at least one broker")
	}
	for _, b := range c.Brokers {
		host, port, err := net.SplitHostPort(b)
		if err != nil || host == "" {
			return fmt.Errorf("--kafka.brokers: %q is no address: want HOST:PORT, such as kafka-1:9092", b)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("--kafka.brokers: %q has no usable port: want a number from 1 to 65535", b)
		}
	}
	if _, err := newFilter("--kafka.group", c.Group, c.GroupExclude); err != nil {
		return err
	}
	if _, err := newFilter("--kafka.topic", c.Topic, c.TopicExclude); err != nil {
		return err
	}
	if c.Granularity != ByPartition && c.Granularity != ByTopic {
		return fmt.Errorf("--kafka.granularity: %q is not known: want partition or topic", c.Granularity)
	}
	if c.MaxGroups < 1 {
		return fmt.Errorf("--kafka.max-groups: %d leaves nothing to watch: want 1 or more", c.MaxGroups)
	}
	if c.TopicConfigInterval < time.Second {
		return fmt.Errorf("--kafka.topic-config-interval: %v is too short: want 1s or more", c.TopicConfigInterval)
	}
	if err := c.TLS.validate(); err != nil {
		return err
	}
	return c.SASL.validate()
}

func (t TLS) validate() error {
	if !t.Enabled {
		for name, set := range map[string]bool{"ca-file": t.CAFile != "", "cert-file": t.CertFile != "", "key-file": t.KeyFile != "", "server-name": t.ServerName != "", "insecure-skip-verify": t.InsecureSkipVerify} {
			if set {
				return fmt.Errorf("--kafka.tls.%s is set but TLS is off: add --kafka.tls.enabled", name)
			}
		}
		return nil
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return fmt.Errorf("--kafka.tls.cert-file and --kafka.tls.key-file go together: set both for mutual TLS, or neither")
	}
	_, err := t.config()
	return err
}

func (s SASL) validate() error {
	set := map[string]bool{
		"username": s.Username != "", "password": s.Password != "", "password-file": s.PasswordFile != "",
		"oauth-token-url": s.OAuthTokenURL != "", "oauth-client-id": s.OAuthClientID != "", "oauth-client-secret": s.OAuthClientSecret != "",
		"oauth-client-secret-file": s.OAuthClientSecretFile != "", "oauth-scopes": len(s.OAuthScopes) > 0, "oauth-token-file": s.OAuthTokenFile != "",
	}
	var allowed, needed []string
	switch {
	case s.Mechanism == "":
	case s.Mechanism == OAuthBearer && s.OAuthTokenFile != "":
		allowed = []string{"oauth-token-file"}
	case s.Mechanism == OAuthBearer:
		allowed = []string{"oauth-token-url", "oauth-client-id", "oauth-client-secret", "oauth-client-secret-file", "oauth-scopes"}
		needed = []string{"oauth-token-url", "oauth-client-id"}
	case slices.Contains(mechanisms, s.Mechanism):
		allowed = []string{"username", "password", "password-file"}
		needed = []string{"username"}
	default:
		return fmt.Errorf("--kafka.sasl.mechanism: %q is not known: want %s", s.Mechanism, strings.Join(mechanisms, ", "))
	}
	for name := range set {
		if !set[name] || slices.Contains(allowed, name) {
			continue
		}
		if s.Mechanism == "" {
			return fmt.Errorf("--kafka.sasl.%s is set but no mechanism: set --kafka.sasl.mechanism to %s", name, strings.Join(mechanisms, ", "))
		}
		return fmt.Errorf("--kafka.sasl.%s does not go with --kafka.sasl.mechanism=%s: remove one of them", name, s.Mechanism)
	}
	for _, name := range needed {
		if !set[name] {
			return fmt.Errorf("--kafka.sasl.mechanism=%s needs --kafka.sasl.%s", s.Mechanism, name)
		}
	}
	for _, pair := range [][2]string{{"password", "password-file"}, {"oauth-client-secret", "oauth-client-secret-file"}} {
		if set[pair[0]] && set[pair[1]] {
			return fmt.Errorf("--kafka.sasl.%s and --kafka.sasl.%s are both set: remove one of them", pair[0], pair[1])
		}
		if slices.Contains(allowed, pair[0]) && !set[pair[0]] && !set[pair[1]] {
			return fmt.Errorf("--kafka.sasl.mechanism=%s needs --kafka.sasl.%s or --kafka.sasl.%s", s.Mechanism, pair[0], pair[1])
		}
	}
	if s.OAuthTokenURL != "" {
		// Its error would repeat the address, and the password in it.
		if u, err := url.Parse(s.OAuthTokenURL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("--kafka.sasl.oauth-token-url is no address: want for example https://idp.example/token")
		}
	}
	for flag, path := range map[string]string{"password-file": s.PasswordFile, "oauth-client-secret-file": s.OAuthClientSecretFile, "oauth-token-file": s.OAuthTokenFile} {
		if path == "" {
			continue
		}
		if _, err := readSecret("--kafka.sasl."+flag, path); err != nil {
			return err
		}
	}
	return nil
}

func readSecret(flag, path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("%s: %s is empty", flag, path)
	}
	return secret, nil
}
