package privileges

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"golang.org/x/crypto/bcrypt"

	"oncewatch/deploy/testenv"
)

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "oncewatch-privileges-")
	if err != nil {
		return "", err
	}
	testenv.OnExit(func() error { return os.RemoveAll(dir) })
	path := filepath.Join(dir, "oncewatch")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = testenv.Root()
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// program is a command of the real program in an environment of its own.
func program(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}, env...)
	return cmd
}

// The secrets, each a word of its own that nothing else contains.
const (
	secretRight  = password // of PostgreSQL, the right one
	secretWrong  = "s3cret-wrong-dsn"
	secretPG     = "s3cret-pgpassword"
	secretKafka  = "s3cret-kafka"
	secretOAuth  = "s3cret-oauth"
	secretURL    = "s3cret-consumer-url"
	secretScrape = "s3cret-scrape"
)

var secrets = []string{secretRight, secretWrong, secretPG, secretKafka, secretOAuth, secretURL, secretScrape}

// tells names the secrets in a text.
func tells(t *testing.T, what, text string) {
	t.Helper()
	for _, s := range secrets {
		if i := strings.Index(text, s); i >= 0 {
			t.Errorf("%s tells %s: …%s…", what, s, text[max(0, i-80):min(len(text), i+80)])
		}
	}
}

// Every secret given in every way, right and wrong: none in the log at any
// level, on the page, in the metrics, in the audit, in the arguments that ps
// shows, nor in what a crash leaves.
func TestNoSecretIsTold(t *testing.T) {
	t.Parallel()
	server := app(t)
	// A broker that wants another password, and one that wants none.
	locked, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "oncewatch", "another"))
	if err != nil {
		t.Fatal(err)
	}
	defer locked.Close()
	open, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(secretScrape), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	web := put("web.yml", "basic_auth_users:\n  prometheus: "+string(hash)+"\n")
	file := put("oncewatch.yml", "postgres:\n  dsn: "+server.UserDSN("app", "oncewatch", secretWrong)+"\nkafka:\n  brokers: ["+locked.ListenAddrs()[0]+"]\n  sasl: {mechanism: PLAIN, username: oncewatch, password: "+secretKafka+"}\nconsumer:\n  metrics-url: [\"http://u:"+secretURL+"@127.0.0.1:1/metrics\"]\n")
	stores := put("stores.yml", "stores:\n  - dsn: "+server.UserDSN("app", "oncewatch", secretRight)+"\n  - {database: two, dsn: \"host=127.0.0.1 port=1 user=u password="+secretWrong+"\"}\n")
	for name, c := range map[string]struct {
		env, args []string
		failing   string // in the log
	}{
		"environment, right": {
			[]string{"ONCEWATCH_POSTGRES_DSN=" + server.UserDSN("app", "oncewatch", secretRight), "ONCEWATCH_KAFKA_BROKERS=" + open.ListenAddrs()[0]}, nil, ""},
		"file, wrong": {nil, []string{"--config.file=" + file}, "password authentication failed"},
		"variables of libpq, wrong": {
			[]string{"PGHOST=127.0.0.1", fmt.Sprint("PGPORT=", server.Port), "PGUSER=oncewatch", "PGDATABASE=app", "PGSSLMODE=disable", "PGPASSWORD=" + secretPG,
				"ONCEWATCH_KAFKA_BROKERS=" + locked.ListenAddrs()[0], "ONCEWATCH_KAFKA_SASL_MECHANISM=SCRAM-SHA-512", "ONCEWATCH_KAFKA_SASL_USERNAME=oncewatch", "ONCEWATCH_KAFKA_SASL_PASSWORD=" + secretKafka}, nil, "password authentication failed"},
		"several stores and a token endpoint": {
			[]string{"ONCEWATCH_KAFKA_BROKERS=" + locked.ListenAddrs()[0], "ONCEWATCH_KAFKA_SASL_MECHANISM=OAUTHBEARER", "ONCEWATCH_KAFKA_SASL_OAUTH_TOKEN_URL=http://u:" + secretURL + "@127.0.0.1:1/token",
				"ONCEWATCH_KAFKA_SASL_OAUTH_CLIENT_ID=me", "ONCEWATCH_KAFKA_SASL_OAUTH_CLIENT_SECRET=" + secretOAuth}, []string{"--config.file=" + stores}, "collector=groups"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, level := range []string{"debug", "error"} {
				log := &testenv.Log{}
				cmd := program(t, c.env, append([]string{"serve", "--web.listen-address=127.0.0.1:0", "--web.config.file=" + web, "--poll.interval=300ms", "--poll.timeout=3s", "--log.level=" + level, "--log.format=json"}, c.args...)...)
				cmd.Env = append(cmd.Env, "GOTRACEBACK=all")
				cmd.Dir = t.TempDir()
				cmd.Stdout, cmd.Stderr = log, log
				if level == "error" { // the address is not logged then
					cmd.Args[2] = "--web.listen-address=" + testenv.FreeAddress(t)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				url := "http://" + strings.TrimPrefix(cmd.Args[2], "--web.listen-address=")
				get := func(path string) string {
					req, err := http.NewRequest(http.MethodGet, url+path, nil)
					if err != nil {
						return ""
					}
					req.SetBasicAuth("prometheus", secretScrape)
					resp, err := http.DefaultClient.Do(req)
					if err != nil {
						return ""
					}
					defer func() { _ = resp.Body.Close() }()
					body, _ := io.ReadAll(resp.Body)
					return fmt.Sprint(resp.Status, resp.Header, string(body))
				}
				testenv.Eventually(t, "two polls", func() bool {
					if m := regexp.MustCompile(`"Listening on","address":"([^"]+)"`).FindStringSubmatch(log.String()); m != nil {
						url = "http://" + m[1]
					}
					return strings.Count(get("/metrics"), "oncewatch_collector_duration_seconds{") >= 5
				})
				if level == "debug" {
					testenv.Eventually(t, "the log to say "+c.failing, func() bool {
						return strings.Contains(log.String(), c.failing) || strings.Contains(strings.ReplaceAll(log.String(), `"collector":"groups"`, "collector=groups"), c.failing)
					})
				}
				tells(t, "/metrics", get("/metrics"))
				tells(t, "/", get("/"))
				tells(t, "another path", get("/debug/pprof/cmdline")+get("/config")+get("/-/ready"))
				arguments, err := exec.Command("ps", "-ww", "-o", "args=", "-p", fmt.Sprint(cmd.Process.Pid)).Output()
				if err != nil || !strings.Contains(string(arguments), "serve") {
					t.Fatalf("ps: %v %s", err, arguments)
				}
				tells(t, "ps", string(arguments))
				// The end by a signal that would dump core: stacks, no memory.
				if err := cmd.Process.Signal(syscall.SIGQUIT); err != nil {
					t.Fatal(err)
				}
				_ = cmd.Wait()
				if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.CoreDump() {
					t.Error("a core file was written")
				}
				if !strings.Contains(log.String(), "goroutine ") {
					t.Error("SIGQUIT left no stacks: the test sees nothing")
				}
				tells(t, "the log at "+level, log.String())
			}
			for _, output := range []string{"text", "json"} {
				cmd := program(t, c.env, append([]string{"check", "--output=" + output, "--timeout=20s", "--poll.timeout=3s"}, c.args...)...)
				out, _ := cmd.CombinedOutput() // its exit code is another test's
				if len(out) < 100 {
					t.Errorf("check says only %q", out)
				}
				tells(t, "check", string(out))
			}
			help, err := program(t, c.env, "serve", "--help").CombinedOutput()
			if err != nil || !strings.Contains(string(help), "--postgres.dsn") {
				t.Errorf("help: %v", err)
			}
			tells(t, "help", string(help))
		})
	}
	http.DefaultClient.CloseIdleConnections()
}

// What cannot be used is refused without repeating it.
func TestRefusalsTellNoSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"no YAML":           "postgres:\n  dsn: \"" + secretWrong + "\n",
		"unusable DSN":      "postgres:\n  dsn: \"postgres://u:" + secretWrong + "@h:port/x\"\n",
		"DSN as a mapping":  "postgres:\n  dsn: {password: " + secretWrong + "}\n",
		"password as list":  "kafka:\n  sasl:\n    password: [" + secretKafka + "]\n",
		"unknown mechanism": "kafka:\n  sasl: {mechanism: NONE, username: u, password: " + secretKafka + "}\n",
		"unusable URL":      "consumer:\n  metrics-url: [\"ftp://u:" + secretURL + "@h/\"]\n",
		"unparsable URL":    "consumer:\n  metrics-url: [\"http://u:" + secretURL + "@h:x y/\"]\n",
		"token URL":         "kafka:\n  sasl: {mechanism: OAUTHBEARER, oauth-token-url: \"://u:" + secretURL + "@h\", oauth-client-id: x, oauth-client-secret: " + secretOAuth + "}\n",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".yml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := program(t, nil, "check", "--dry-run", "--config.file="+file)
			out, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != 2 {
				t.Errorf("%v, want exit code 2: %s", err, out)
			}
			tells(t, "the refusal", string(out))
		})
	}
}
