package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"oncewatch/collectors/replay"
)

// ReplayPath is where Replay is served.
const ReplayPath = replay.Path

// Bounds of Replay: each answer asks the brokers a few dozen questions.
const (
	replaysAtOnce = 2
	replayTimeout = 20 * time.Second
)

// Replay serves, for a consumer group, what a reset of its offsets would apply
// twice: as JSON, or with format=text for a person. The parameters are those of
// the command: group, topic, to, database. What is wrong with them is answered
// by 400, what cannot be told now by 503, both with {"error": …}.
func Replay(answer func(context.Context, replay.Question) (*replay.Answer, error)) http.Handler {
	places := make(chan struct{}, replaysAtOnce)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), replayTimeout)
		defer cancel()
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		query := r.URL.Query()
		text := query.Get("format") == "text"
		h.Set("Content-Type", "application/json")
		if text {
			h.Set("Content-Type", "text/plain; charset=utf-8")
		}
		var a *replay.Answer
		question, err := replay.QuestionOf(query)
		if err == nil {
			select {
			case places <- struct{}{}:
				a, err = answer(ctx, question)
				<-places
			case <-ctx.Done():
				err = errors.New("too many questions at once")
			}
		}
		if err != nil {
			code, message := http.StatusServiceUnavailable, err.Error()
			var input *replay.InputError
			if errors.As(err, &input) {
				code, message = http.StatusBadRequest, input.Parameter+": "+input.Text
			}
			w.WriteHeader(code)
			if text {
				_, _ = w.Write([]byte(message + "\n"))
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]string{"error": message})
			return
		}
		var b bytes.Buffer
		if text {
			err = a.Text(&b)
		} else {
			err = a.JSON(&b)
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(b.Bytes())
	})
}
