package web_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/net/html"

	"oncewatch/collectors/checklist"
	"oncewatch/collectors/poll"
	"oncewatch/collectors/replay"
	"oncewatch/collectors/web"
)

// tags is the skeleton of a page: its elements and the names of their
// attributes.
func tags(page string) (out []string) {
	z := html.NewTokenizer(strings.NewReader(page))
	for {
		switch z.Next() {
		case html.ErrorToken:
			return out
		case html.StartTagToken, html.SelfClosingTagToken, html.EndTagToken:
			token := z.Token()
			one := token.Data
			for _, a := range token.Attr {
				one += " " + a.Key
			}
			out = append(out, one)
		}
	}
}

// named are the pages of a group, a topic and a database of the name.
func named(t testing.TB, name string) (pages [2]string) {
	ask, err := web.Replay(func(context.Context, replay.Question) (*replay.Answer, error) {
		return nil, &replay.InputError{Parameter: "group", Text: "there is no " + name}
	})
	if err != nil {
		t.Fatal(err)
	}
	pages[0] = render(t, func() web.View {
		line := checklist.Line{Rule: "lag", Title: "How far?", Group: name, Topic: name, Database: name, Value: name, Threshold: name, Meaning: name, Remedy: name, Evidence: []string{name}, Verdict: checklist.Warning}
		v := web.View{Now: time.Unix(1_800_000_000, 0), Version: "1", Metrics: "metrics", Notes: []string{name},
			Sources: []poll.Status{{ID: poll.ID{Subject: "groups", Store: name}, Err: errors.New(name)}},
			Resets:  []web.Reset{{Database: name, Group: name, Topic: name, SafeBackTo: time.Unix(1_799_000_000, 0)}}}
		for range 30 { // some of them folded
			v.Lines = append(v.Lines, line)
			line.Database += "x"
		}
		return v
	})
	rec := get(t, ask, "/replay?"+url.Values{"group": {name}, "topic": {name}, "database": {name}, "to": {name}}.Encode())
	if rec.Code != http.StatusBadRequest {
		t.Fatalf("%q: %d", name, rec.Code)
	}
	pages[1] = rec.Body.String()
	return pages
}

// Whatever a group, a topic and a database are named, the pages have the
// elements they have with a plain name, and nothing more.
//
//	go test ./collectors/web -run '^$' -fuzz FuzzNames -fuzztime 10m
func FuzzNames(f *testing.F) {
	for _, name := range []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onclick='x`, "\xff\xfe<b>", "a\x00b", "javascript:alert(1)", "--><p>", "</style></script><p>", "{{.Now}}", "\u202e&lt;b&gt;", "+AFw-"} {
		f.Add(name)
	}
	var plain [2][]string
	for i, page := range named(f, "name") {
		plain[i] = tags(page)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if name == "" || len(name) > 10_000 {
			return
		}
		got := named(t, name)
		for i := range got {
			if !utf8.ValidString(got[i]) || !slices.Equal(tags(got[i]), plain[i]) {
				t.Errorf("%q changes page %d:\n%s", name, i, got[i])
			}
		}
	})
}
