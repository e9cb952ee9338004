package alerts

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed runbooks/*.md
var runbooks embed.FS

// Runbook is the page of an alert, as Markdown; false where there is none. The
// name may end in .md, as links in the files do.
func Runbook(name string) ([]byte, bool) {
	name = strings.TrimSuffix(name, ".md")
	if strings.ContainsAny(name, "/\\") {
		return nil, false
	}
	text, err := fs.ReadFile(runbooks, "runbooks/"+name+".md")
	return text, err == nil
}
