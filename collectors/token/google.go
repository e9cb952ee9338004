package token

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// cloudSQLScope lets a token do no more than log in to Cloud SQL.
const cloudSQLScope = "https://www.googleapis.com/auth/sqlservice.login"

// CloudSQL gives tokens of Google's application default credentials: the file
// of GOOGLE_APPLICATION_CREDENTIALS (workload identity federation too), or the
// metadata server.
func CloudSQL() Source {
	var mu sync.Mutex
	var found *google.Credentials
	return Func(func(ctx context.Context) (*oauth2.Token, error) {
		mu.Lock()
		defer mu.Unlock()
		if found == nil {
			// The credentials outlive this login, and so must their context.
			c, err := google.FindDefaultCredentials(context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, &http.Client{Timeout: fetchTimeout}), cloudSQLScope)
			if err != nil {
				return nil, fmt.Errorf("Google: no credentials; give the pod or machine a service account, or set GOOGLE_APPLICATION_CREDENTIALS: %w", err)
			}
			found = c
		}
		token, err := within(ctx, found.TokenSource)
		if err != nil {
			return nil, fmt.Errorf("Google: no token: %w", brief(err))
		}
		return token, nil
	})
}

// within bounds a source that takes no context.
func within(ctx context.Context, source oauth2.TokenSource) (*oauth2.Token, error) {
	type answer struct {
		token *oauth2.Token
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		token, err := source.Token()
		done <- answer{token, err}
	}()
	select {
	case a := <-done:
		return a.token, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
