package deploy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"oncewatch/deploy/testenv"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(testenv.Root(), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestDockerfile(t *testing.T) {
	text := readFile(t, "deploy/docker/Dockerfile")
	defaults := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ARG (\w+)=(\S+)$`).FindAllStringSubmatch(text, -1) {
		defaults[m[1]] = m[2]
	}
	stages := map[string]bool{"scratch": true}
	for _, m := range regexp.MustCompile(`(?m)^FROM (\S+)(?: AS (\S+))?$`).FindAllStringSubmatch(text, -1) {
		image := os.Expand(m[1], func(name string) string { return defaults[name] })
		if !stages[image] && (!strings.Contains(image, ":") || strings.HasSuffix(image, ":latest")) {
			t.Errorf("%s is not pinned to a version", image)
		}
		stages[m[2]] = true
	}
	if !strings.Contains(text, "\nUSER 65532:65532\n") {
		t.Error("the images run as root")
	}
	release := readFile(t, ".goreleaser.yaml")
	for _, flag := range []string{versionFlag, revisionFlag} {
		if !strings.Contains(text, "-X "+flag+"=") || !strings.Contains(release, "-X "+flag+"=") {
			t.Errorf("%s is not stamped by both the Dockerfile and goreleaser", flag)
		}
	}
	for _, target := range []string{"oncewatch", "reference-consumer", "oncewatch-healthcheck", "reference-consumer-healthcheck"} {
		if !stages[target] {
			t.Errorf("there is no target %s", target)
		}
	}
	if goVersion := regexp.MustCompile(`ARG GO_VERSION=(\S+)`).FindStringSubmatch(text)[1]; !strings.Contains(readFile(t, "go.mod"), "\ngo "+goVersion) {
		t.Errorf("the image builds with Go %s, go.mod wants another", goVersion)
	}
}

// The build sees what the dockerignore file lets in: every file that the
// programs are compiled from, or embed, must be among it.
func TestDockerignore(t *testing.T) {
	allowed := map[string]bool{}
	for line := range strings.Lines(readFile(t, "deploy/docker/Dockerfile.dockerignore")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "!"); ok {
			allowed[name] = true
		}
	}
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Standard,Module,GoFiles,EmbedFiles", ".", "./reference-consumer")
	cmd.Dir = testenv.Root()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Dir     string
			Module              *struct{ Path string }
			GoFiles, EmbedFiles []string
		}
		if err := decoder.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Module == nil || p.Module.Path != "oncewatch" {
			continue
		}
		for _, name := range append(p.GoFiles, p.EmbedFiles...) {
			path, err := filepath.Rel(testenv.Root(), filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			files++
			top, _, _ := strings.Cut(path, "/")
			if !allowed[top] && !(allowed["*.go"] && top == path && filepath.Ext(path) == ".go") || strings.Contains(path, "/testdata/") || strings.Contains(path, "/node_modules/") || strings.HasSuffix(path, "_test.go") {
				t.Errorf("%s is needed to build, and ignored", path)
			}
		}
	}
	if files < 20 {
		t.Errorf("only %d files were looked at", files)
	}
}

// The image cannot be built without a container engine. What it promises can be
// shown without: the same static program, another user, a root that holds
// nothing else and cannot be written.
func TestStaticOnAReadOnlyRoot(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for dir := root; dir != "/"; dir = filepath.Dir(dir) { // another user must get there
		if err := os.Chmod(dir, 0o755); err != nil && dir == root {
			t.Fatal(err)
		}
		if filepath.Dir(dir) == os.TempDir() {
			break
		}
	}
	built, err := staticBuilds()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"oncewatch", "reference-consumer"} {
		raw, err := os.ReadFile(filepath.Join(built, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), raw, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	inRoot := func(args string) *exec.Cmd {
		return exec.Command("unshare", "--mount", "sh", "-ec",
			`mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; exec chroot --userspec=65532:65532 "$0" `+args, root)
	}
	if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
		testenv.Missing(t, "the right to mount", &exec.Error{Name: string(out), Err: err})
	}
	if out := output(t, inRoot("/oncewatch --version")); !strings.Contains(out, testVersion) || !strings.Contains(out, testRevision) {
		t.Errorf("the version is not stamped: %s", out)
	}
	if out := output(t, inRoot("/reference-consumer run --help")); !strings.Contains(out, "--batch-size") {
		t.Errorf("reference-consumer: %s", out)
	}

	address := testenv.FreeAddress(t)
	cmd := inRoot("/oncewatch serve --web.listen-address=" + address + " --kafka.brokers=127.0.0.1:1 --postgres.dsn=postgres://nobody@127.0.0.1:1/none --poll.interval=1s --poll.timeout=500ms")
	start(t, cmd)
	testenv.Eventually(t, "the exporter is healthy", func() bool { return status(http.DefaultClient, "http://"+address+"/-/healthy") == http.StatusOK })
	if got := status(http.DefaultClient, "http://"+address+"/-/ready"); got != http.StatusServiceUnavailable {
		t.Errorf("/-/ready without a database and a broker: %d, want 503", got)
	}
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	for _, want := range []string{`oncewatch_build_info{`, `revision="` + testRevision + `"`, `version="` + testVersion + `"`, `oncewatch_collector_success{collector="groups"} 0`} {
		if !strings.Contains(string(page), want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	uid, err := os.Stat(fmt.Sprintf("/proc/%d", cmd.Process.Pid))
	if err != nil || uid.Sys().(*syscall.Stat_t).Uid != 65532 {
		t.Errorf("the program does not run as 65532: %+v %v", uid, err)
	}
	asked := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || time.Since(asked) > 5*time.Second {
		t.Errorf("SIGTERM: %v after %v, want exit code 0 within 5 s", err, time.Since(asked))
	}
}
