package recover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Limits of what is asked of a server.
const (
	maxAnswer = 1 << 20
	maxModels = 64
)

// asker asks one server on this machine, without proxy, redirect or kept connection.
type asker struct {
	http           *http.Client
	key            string
	models, canary time.Duration
}

func newAsker(o Options) *asker {
	a := &asker{key: o.APIKey, models: o.Models, canary: o.Canary}
	if a.models <= 0 {
		a.models = 3 * time.Second
	}
	if a.canary <= 0 {
		a.canary = 10 * time.Second
	}
	a.http = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return a
}

// ask asks a port for its models and, if it has any, the first of them for one token.
func (a *asker) ask(ctx context.Context, l *Listener, say func(string)) {
	var body []byte
	l.Listing, body = a.send(ctx, a.models, http.MethodGet, l.base+"/v1/models", nil)
	if l.Listing.State != Answers {
		return
	}
	var err error
	if l.Models, err = modelIDs(body); err != nil {
		l.Listing.State, l.Listing.Detail = Fails, plain(err.Error())
		return
	}
	if len(l.Models) == 0 {
		return
	}
	say(fmt.Sprintf("asking %s for one token, for up to %s", l.Models[0], a.canary))
	for _, try := range []struct {
		path string
		body map[string]any
	}{{"/v1/chat/completions", map[string]any{"messages": []any{map[string]any{"role": "user", "content": "Hi"}}}},
		{"/v1/completions", map[string]any{"prompt": "Hi"}}} {
		try.body["model"], try.body["max_tokens"], try.body["temperature"] = l.Models[0], 1, 0
		b, err := json.Marshal(try.body)
		if err != nil {
			return
		}
		var answer []byte
		l.Completion, answer = a.send(ctx, a.canary, http.MethodPost, l.base+try.path, b)
		if l.Completion.State == Answers && !json.Valid(answer) {
			l.Completion.State, l.Completion.Detail = Fails, "the answer isn't JSON"
		}
		if s := l.Completion.HTTPStatus; s != http.StatusNotFound && s != http.StatusMethodNotAllowed {
			return
		}
	}
}

var errTooSlow = errors.New("no whole answer came in time")

// send makes one request within a time and returns the body of a 200.
func (a *asker) send(ctx context.Context, within time.Duration, method, url string, body []byte) (Answer, []byte) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, errTooSlow)
	defer cancel()
	start := time.Now()
	status, data, err := a.roundTrip(ctx, method, url, body)
	out := Answer{HTTPStatus: int64(status), WallUS: time.Since(start).Microseconds()}
	switch {
	case err != nil && context.Cause(ctx) == errTooSlow:
		out.State, out.Detail = Hangs, fmt.Sprintf("%v (%s)", errTooSlow, within)
	case err != nil:
		out.State, out.Detail = Fails, plain(reason(err))
	case status != http.StatusOK:
		out.State, out.Detail = Refuses, http.StatusText(status)
	default:
		out.State = Answers
	}
	return out, data
}

func (a *asker) roundTrip(ctx context.Context, method, url string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if a.key != "" {
		req.Header.Set("Authorization", "Bearer "+a.key)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(data) > maxAnswer {
		err = fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	return resp.StatusCode, data, err
}

// reason is err without the address, which the port says already.
func reason(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return err.Error()
}

// modelIDs reads the list that OpenAI's API gives.
func modelIDs(body []byte) ([]string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return []string{}, fmt.Errorf("the list of models isn't JSON: %w", err)
	}
	out := []string{}
	for _, m := range list.Data[:min(len(list.Data), maxModels)] {
		if m.ID != "" {
			out = append(out, plain(m.ID))
		}
	}
	return out, nil
}
