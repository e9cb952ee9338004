package deploy_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"oncewatch/deploy/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// What the tests stamp into the programs they build.
const (
	testVersion  = "1.2.3-test"
	testRevision = "0123456789abcdef0123456789abcdef01234567"
)

var builds = sync.OnceValues(func() (dir string, err error) {
	dir, err = os.MkdirTemp("", "oncewatch-deploy")
	if err != nil {
		return "", err
	}
	testenv.OnExit(func() error { return os.RemoveAll(dir) })
	return dir, goBuild(dir, nil, ".", "./reference-consumer")
})

// staticBuilds are built as the Dockerfile does it.
var staticBuilds = sync.OnceValues(func() (dir string, err error) {
	dir, err = builds()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "static")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	return dir, goBuild(dir, []string{"CGO_ENABLED=0"}, append(releaseFlags, ".", "./reference-consumer")...)
})

// releaseFlags are those of .goreleaser.yaml and deploy/docker/Dockerfile.
var releaseFlags = []string{"-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X " + versionFlag + "=" + testVersion + " -X " + revisionFlag + "=" + testRevision}

const (
	versionFlag  = "github.com/prometheus/common/version.Version"
	revisionFlag = "github.com/prometheus/common/version.Revision"
)

var strictBuild = sync.OnceValues(func() (string, error) {
	dir, err := builds()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "strict"), goBuild(filepath.Join(dir, "strict"), nil, "-modfile=tools.mod", "deploy/strict/main.go")
})

func goBuild(out string, env []string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-o", out}, args...)...)
	cmd.Dir = testenv.Root()
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %v: %w: %s", args, err, text)
	}
	return nil
}

// program returns the path of a program of this repository, built once.
func program(t *testing.T, name string) string {
	t.Helper()
	dir, err := builds()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// strict runs a check of deploy/strict from the repository's root and returns
// what it read.
func strict(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := strictBuild()
	if err != nil {
		testenv.Missing(t, "the libraries of tools.mod", err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = testenv.Root()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%w: %s", err, stderr.String())
	}
	return string(out), nil
}

// output runs a command and fails the test where the command fails.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

var flagOf = regexp.MustCompile(`^--([a-z0-9.-]+)`)

// knowsCommand fails where a command line names a command or a flag that the
// program does not have, or the environment a variable.
func knowsCommand(t *testing.T, name string, args []string, environment ...string) {
	t.Helper()
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		t.Errorf("%s %v: want a command first", name, args)
		return
	}
	help := output(t, exec.Command(program(t, name), args[0], "--help"))
	for _, arg := range args[1:] {
		m := flagOf.FindStringSubmatch(arg)
		if m == nil {
			continue
		}
		if !regexp.MustCompile(`--(\[no-\])?` + regexp.QuoteMeta(m[1]) + `[=\s,]`).MatchString(help) {
			t.Errorf("%s %s has no flag %s", name, args[0], arg)
		}
	}
	// Help wraps its lines anywhere but inside a word.
	for _, variable := range environment {
		if !slices.Contains(strings.FieldsFunc(help, func(r rune) bool { return strings.ContainsRune(" \n($),.", r) }), variable) {
			t.Errorf("%s %s does not read %s", name, args[0], variable)
		}
	}
}

// knowsConfig fails where the program refuses a configuration file.
func knowsConfig(t *testing.T, file string) {
	t.Helper()
	output(t, exec.Command(program(t, "oncewatch"), "rules", "--config.file="+file))
}

// start runs a command until the test ends, and shows what it wrote where the
// test failed.
func start(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(os.Interrupt)
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Logf("%s: %s", cmd, log.String())
		}
	})
	return cmd
}

func status(client *http.Client, url string) int {
	resp, err := client.Get(url)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
