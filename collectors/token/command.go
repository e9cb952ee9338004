package token

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/oauth2"
)

const (
	// commandTimeout is how long a command may run, and drainTimeout how long
	// what it started may hold its output open after it.
	commandTimeout = 10 * time.Second
	drainTimeout   = time.Second
	// maxToken bounds a command's output: servers take no longer tokens.
	maxToken = 64 << 10
)

// Command runs a program for each token and takes its output, without the
// space around it. The words of line are the program and its arguments; no
// shell reads them. flag names the setting in errors, which repeat nothing that
// the program wrote.
func Command(flag, line string) Source {
	return Func(func(ctx context.Context) (*oauth2.Token, error) {
		ctx, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		words := strings.Fields(line)
		if len(words) == 0 {
			return nil, fmt.Errorf("%s: no command", flag)
		}
		cmd := exec.CommandContext(ctx, words[0], words[1:]...)
		cmd.WaitDelay = drainTimeout
		var out bounded
		cmd.Stdout = &out
		err := cmd.Run()
		text := strings.TrimSpace(out.buf.String())
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%s: %s gave no token in time: %w", flag, words[0], ctx.Err())
		case out.over:
			return nil, fmt.Errorf("%s: %s wrote more than %d bytes, which is no token", flag, words[0], maxToken)
		case err != nil: // of the start or the exit status, without output
			return nil, fmt.Errorf("%s: %s gave no token: %w; run it by hand as this user", flag, words[0], err)
		case text == "" || strings.ContainsAny(text, "\r\n\x00"):
			return nil, fmt.Errorf("%s: %s did not write one line with a token", flag, words[0])
		}
		return &oauth2.Token{AccessToken: text}, nil
	})
}

var errTooLong = errors.New("too long")

type bounded struct {
	buf  bytes.Buffer
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > maxToken {
		b.over = true
		return 0, errTooLong
	}
	return b.buf.Write(p)
}
