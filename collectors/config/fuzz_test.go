package config_test

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Whatever a file holds, it is read or refused by an error that names the file
// and repeats nothing of a key that is not known: a secrets file may have been
// given by mistake.
//
//	go test ./collectors/config -run '^$' -fuzz FuzzFile -fuzztime 10m
func FuzzFile(f *testing.F) {
	for _, yaml := range []string{
		"kafka:\n  brokers: [a:1]\n  max-groups: 3\npoll.interval: 1d\n", "stores:\n- poll: {interval: 2m}\n- keep.times: {g: 8d}\n", "keep: {times: {g: 8x}}\n",
		"hunter2\n", "hunter2: 1\n", "user:hunter2\n", "a: &x [*x]\n", "? [a, b]\n: c\n", "a: !!binary hunter2\n", "<<: {hunter2: 1}\n", "---\n---\n", "\t", "postgres.retention: {a: 1, a: 2}\n", "poll.interval: 99999999d",
	} {
		f.Add(yaml)
	}
	known := []string{"kafka", "poll", "keep", "postgres", "stores"}
	f.Fuzz(func(t *testing.T, yaml string) {
		a, loaded, err := parse(t, yaml)
		if err == nil {
			if loaded.File != nil {
				for _, s := range loaded.File.List("stores") {
					_ = s.Decode(&a)
				}
			}
			return
		}
		text := err.Error()
		if !strings.Contains(text, "oncewatch.yml") || !utf8.ValidString(text) || strings.Contains(text, "map[") || strings.Contains(text, "*yaml") || strings.Contains(text, "reflect.") {
			t.Errorf("%q: %q", yaml, text)
		}
		for _, key := range known {
			if strings.Contains(yaml, key) {
				return // the value of a known key is told
			}
		}
		if strings.Contains(text, "hunter2") {
			t.Errorf("%q: the error repeats an unknown line: %s", yaml, text)
		}
	})
}
