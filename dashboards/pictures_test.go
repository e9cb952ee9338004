package dashboards

import (
	"flag"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"oncewatch/deploy/testenv"
)

var (
	pictures = flag.String("pictures", "", "draw the dashboards of every scene into this folder")
	drawn    = flag.String("scene", "", "draw only this scene")
)

// Every dashboard in every scene and in both themes, by Grafana's own components
// in Chromium (dashboards/preview; npm install there first):
//
//	go test ./dashboards -run TestPictures -pictures=DIR
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("a command of its own: go test ./dashboards -run TestPictures -pictures=DIR")
	}
	now := time.Now().Truncate(time.Minute)
	for _, s := range scenes {
		if *drawn != "" && s.name != *drawn {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			p := s.prometheus(t, now)
			group := "ledger-writer"
			if s.others > 0 {
				group = s.groups[1].group
			}
			for _, theme := range []string{"light", "dark"} {
				cmd := exec.CommandContext(t.Context(), "node", "preview.mjs", "--prometheus="+p.url, "--out="+*pictures, "--theme="+theme,
					"--now="+fmt.Sprint(now.Unix()), "--scrape-interval=60s", "--range=6h", "--group="+group, "--prefix="+s.name+"-"+theme+"-")
				cmd.Dir = testenv.Root() + "/dashboards/preview"
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if s.name != "empty" && strings.Contains(string(out), "one look") {
					t.Error("the first panels are empty")
				}
				t.Logf("%s", out)
			}
		})
	}
}
