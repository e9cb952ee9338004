package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"oncewatch/collectors/replay"
)

// Bounds on the answers about resets: each asks the brokers a few dozen
// questions.
const (
	replaysAtOnce = 2
	replayTimeout = 20 * time.Second
)

// Replay answers, for a consumer group, what a reset of its offsets would apply
// twice. At replay.Path it is JSON, or text with format=text; the parameters
// are those of the command: group, topic, to, database. What is wrong with them
// is answered by 400, what cannot be told now by 503, both with {"error": …}.
// At /replay it is a page with a form.
func Replay(answer func(context.Context, replay.Question) (*replay.Answer, error)) (http.Handler, error) {
	page, err := template.ParseFS(pageFiles, "replay.html")
	if err != nil {
		return nil, fmt.Errorf("page template: %w", err)
	}
	places := make(chan struct{}, replaysAtOnce)
	ask := func(r *http.Request) (replay.Question, *replay.Answer, error) {
		q, err := replay.QuestionOf(r.URL.Query())
		if err != nil {
			return q, nil, err
		}
		ctx, cancel := context.WithTimeout(r.Context(), replayTimeout)
		defer cancel()
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			a, err := answer(ctx, q)
			return q, a, err
		case <-ctx.Done():
			return q, nil, errors.New("too many questions at once")
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+replay.Path, func(w http.ResponseWriter, r *http.Request) {
		_, a, err := ask(r)
		var b bytes.Buffer
		kind, code := "application/json", http.StatusOK
		text := r.URL.Query().Get("format") == "text"
		if text {
			kind = "text/plain; charset=utf-8"
		}
		switch {
		case err != nil && text:
			var message string
			code, message = failure(err)
			_, _ = fmt.Fprintln(&b, message)
		case err != nil:
			var message string
			code, message = failure(err)
			err = json.NewEncoder(&b).Encode(map[string]string{"error": message})
		case text:
			err = a.Text(&b)
		default:
			err = a.JSON(&b)
		}
		protect(w, kind)
		if err != nil && b.Len() == 0 {
			code = http.StatusInternalServerError
		}
		w.WriteHeader(code)
		_, _ = w.Write(b.Bytes())
	})
	mux.HandleFunc("GET /replay", func(w http.ResponseWriter, r *http.Request) {
		q, a, err := ask(r)
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		if q.To == "" {
			q.To = "earliest"
		}
		v := struct {
			replay.Question
			Text, Command, API string
			Failed             bool
		}{Question: q, API: strings.TrimPrefix(replay.Path, "/") + "?" + q.Values().Encode(), Failed: err != nil,
			Command: q.Command(scheme + "://" + r.Host)}
		code := http.StatusOK
		if err != nil {
			code, v.Text = failure(err)
		} else {
			var b strings.Builder
			_ = a.Text(&b) // a Builder takes everything
			v.Text = b.String()
		}
		var b bytes.Buffer
		if err := page.Execute(&b, v); err != nil {
			http.Error(w, "The page could not be written: "+err.Error(), http.StatusInternalServerError)
			return
		}
		protect(w, "text/html; charset=utf-8")
		w.WriteHeader(code)
		_, _ = w.Write(bytes.ToValidUTF8(b.Bytes(), []byte("\uFFFD")))
	})
	return mux, nil
}

// failure is what to answer where there is no answer.
func failure(err error) (code int, message string) {
	var input *replay.InputError
	if errors.As(err, &input) {
		return http.StatusBadRequest, input.Parameter + ": " + input.Text
	}
	return http.StatusServiceUnavailable, err.Error()
}
