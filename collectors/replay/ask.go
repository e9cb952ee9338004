package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"oncewatch/collectors/httpclient"
)

// Path is where an exporter answers.
const Path = "/api/v1/replay"

// maxAnswer bounds what an exporter may answer, in bytes.
const maxAnswer = 64 << 20

// Ask puts the question to a running exporter, whose address base is. Errors
// name the address without a secret.
func Ask(ctx context.Context, client *http.Client, base string, q Question) (*Answer, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, bad("exporter", "it is no address: want for example https://oncewatch.example:10077")
	}
	u.Path = strings.TrimSuffix(u.Path, "/") + Path
	u.RawQuery, u.Fragment = q.Values().Encode(), ""
	fail := func(format string, args ...any) (*Answer, error) {
		return nil, fmt.Errorf("the exporter at %s: %w", httpclient.Redacted(u.String()), fmt.Errorf(format, args...))
	}
	resp, err := patiently(ctx, client, u.String())
	if err != nil {
		return nil, fmt.Errorf("the exporter at %w", err)
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
		return fail("HTTP %d: see --exporter.username, --exporter.password-file, --exporter.bearer-token-file and --exporter.tls.cert-file", resp.StatusCode)
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

func patiently(ctx context.Context, client *http.Client, address string) (*http.Response, error) {
	for again := askAgain; ; again-- {
		resp, err := httpclient.Ask(ctx, client, address, "application/json")
		if err != nil || resp.StatusCode != http.StatusServiceUnavailable || again == 0 {
			return resp, err
		}
		_ = resp.Body.Close()
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w", httpclient.Redacted(address), context.Cause(ctx))
		case <-time.After(time.Second):
		}
	}
}
