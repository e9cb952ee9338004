package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Path is where an exporter answers.
const Path = "/api/v1/replay"

// maxAnswer bounds what an exporter may answer, in bytes.
const maxAnswer = 64 << 20

// Ask puts the question to a running exporter, whose address base is; errors name the address without a secret.
func Ask(ctx context.Context, client *http.Client, base string, q Question) (*Answer, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, bad("exporter", "it is no address: want for example https://oncewatch.example:10077")
	}
	u.Path = strings.TrimSuffix(u.Path, "/") + Path
	u.RawQuery, u.Fragment = q.Values().Encode(), ""
	where := (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
	fail := func(format string, args ...any) (*Answer, error) {
		return nil, fmt.Errorf("the exporter at %s: %w", where, fmt.Errorf(format, args...))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fail("its address cannot be used")
	}
	req.Header.Set("Accept", "application/json")
	resp, err := patiently(ctx, client, req)
	if err != nil {
		var wrapped *url.Error // its own text would repeat the address
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return fail("%w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer))
	switch resp.StatusCode {
	case http.StatusOK:
		var a Answer
		if err := body.Decode(&a); err != nil || a.Verdict == "" {
			return fail("its answer is none of oncewatch's")
		}
		return &a, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fail("it wants a user and password: see --exporter.username and --exporter.password-file")
	case http.StatusNotFound:
		return fail("it is not there: the address is another's, or of an older oncewatch")
	}
	var told struct {
		Error string `json:"error"`
	}
	if err := body.Decode(&told); err != nil || told.Error == "" {
		return fail("HTTP %d", resp.StatusCode)
	}
	return fail("%s", shown(told.Error))
}

// askAgain is how often an exporter that has just started is asked again, a
// second apart.
const askAgain = 5

func patiently(ctx context.Context, client *http.Client, req *http.Request) (*http.Response, error) {
	for again := askAgain; ; again-- {
		resp, err := client.Do(req)
		if err != nil || resp.StatusCode != http.StatusServiceUnavailable || again == 0 {
			return resp, err
		}
		_ = resp.Body.Close()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}
