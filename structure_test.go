package main

import (
	"os/exec"
	"strings"
	"testing"
)

// upward are the packages that use what the folder above them holds.
var upward = map[string]string{
	"oncewatch/alerts/against": "asks a Prometheus what the rules would find, which only the program does",
}

// Arrows between packages point down: none to a folder above, none from the
// exporter to the reference consumer, and none from the consumer's libraries to
// anything outside it.
func TestArrowsPointDown(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}}{{range .Imports}} {{.}}{{end}}", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		names := strings.Fields(line)
		from := names[0]
		for _, to := range names[1:] {
			if to != "oncewatch" && !strings.HasPrefix(to, "oncewatch/") {
				continue
			}
			switch inConsumer := strings.HasPrefix(to, "oncewatch/reference-consumer"); {
			case strings.HasPrefix(from, to+"/") && upward[from] == "":
				t.Errorf("%s imports %s, which is above it", from, to)
			case strings.HasPrefix(from, "oncewatch/collectors") && (inConsumer || strings.HasPrefix(to, "oncewatch/deploy")):
				t.Errorf("%s imports %s: the exporter stands without it", from, to)
			case strings.HasPrefix(from, "oncewatch/reference-consumer/") && !inConsumer:
				t.Errorf("%s imports %s: the consumer's libraries stand alone", from, to)
			}
		}
	}
}
