package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// oldest are the versions of Prometheus' programs that the project supports:
// Debian 12's.
var oldest = map[string][2]int{"prometheus": {2, 42}, "promtool": {2, 42}, "amtool": {0, 25}}

// toolbox finds each program once.
type toolbox struct {
	mu    sync.Mutex
	found map[string]func() (string, error)
}

var tools = &toolbox{found: map[string]func() (string, error){}}

func (b *toolbox) path(name string) (string, error) {
	b.mu.Lock()
	find, ok := b.found[name]
	if !ok {
		find = sync.OnceValues(func() (string, error) {
			if path, err := installed(name); err == nil && os.Getenv("TOOLS") != "newest" {
				return path, nil
			}
			return built(name)
		})
		b.found[name] = find
	}
	b.mu.Unlock()
	return find()
}

var versionOf = regexp.MustCompile(`version (\d+)\.(\d+)`)

// installed is the machine's own program.
func installed(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	out, err := exec.Command(path, "--version").CombinedOutput()
	if err != nil {
		return "", err
	}
	m := versionOf.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s tells no version", path)
	}
	major, _ := strconv.Atoi(string(m[1]))
	minor, _ := strconv.Atoi(string(m[2]))
	if want := oldest[name]; major < want[0] || major == want[0] && minor < want[1] {
		return "", fmt.Errorf("%s is too old: %s", path, m[0])
	}
	return path, nil
}

// built builds the tool if needed and asks where it lies, so that a test runs
// (and kills) the program itself and not the go command in front of it.
func built(name string) (string, error) {
	cmd := exec.Command("go", "tool", "-modfile="+filepath.Join(Root(), "tools.mod"), "-n", name)
	cmd.Dir = Root()
	// remove_all_sd leaves out Prometheus' service discoveries, whose cloud
	// SDKs take most of the build.
	cmd.Env = append(os.Environ(), "GOFLAGS=-tags=remove_all_sd", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go tool %s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
