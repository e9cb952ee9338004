package dbconn

import (
	"strings"
	"testing"
)

// Whatever a connection string holds, it is used or refused by an error that
// names the setting, and the password in it is never told.
//
//	go test ./collectors/dbconn -run '^$' -fuzz FuzzDSN -fuzztime 10m
func FuzzDSN(f *testing.F) {
	for _, parts := range [][2]string{
		{"host=h user=u password=", " dbname=d"}, {"hots=h password=", ""}, {"postgres://u:", "@h:5432/d?sslmode=require"}, {"postgres://u:", "@h/d?sslmod=x"}, {"postgresql://u:", "%zz@h:port"},
		{"password='", "' sslmode=prefered"}, {"host=h password=", " = = x"}, {"password=", "\\"}, {"host=/a,/b port=1,2 password=", " target_session_attrs=x"}, {"", ""}, {"postgres://", "@[::1"},
	} {
		f.Add(parts[0], parts[1])
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.Contains(before, "ssl") || strings.Contains(before, "file") {
			return // the name of a file is told
		}
		const secret = "hunter2secret"
		_, err := To(before + secret + after).Pool()
		if err == nil {
			return
		}
		if text := err.Error(); strings.Contains(text, secret) || !strings.Contains(text, "postgres.dsn") || len(text) > 500 {
			t.Errorf("%q + secret + %q: %s", before, after, text)
		}
	})
}
