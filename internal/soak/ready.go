package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// readiness is what the first completion taught.
type readiness struct {
	took             time.Duration // of the attempt that was answered
	completionTokens ledger.Opt
	spent            int64 // tokens by usage
	usageRefused     bool  // the server takes no stream_options
	memberChanged    bool  // the server wants max_completion_tokens
}

// ready waits until the endpoint answers a completion of one token, the only proof that it serves: lists of models and health pages
// answer while a model loads and after its device is lost. It settles in m what the server turns out to refuse. The error is a
// *NotReadyError, or ctx's.
func (c *client) ready(ctx context.Context, o *Options, t target, m *bodyMaker, roles []loadgen.Message) (readiness, error) {
	deadline := time.Now().Add(o.ReadyTimeout)
	attempt := *c
	clk, s := newClock(), newScratch()
	var r readiness
	said := ""
	for try := int64(2); ; try++ {
		left := time.Until(deadline)
		// What is left bounds the whole attempt: a server that hangs must not hold a run for longer.
		attempt.timeouts = Timeouts{Headers: min(left, orForever(c.timeouts.Headers)), Idle: c.timeouts.Idle, Total: left}
		body, err := m.canary(roles)
		if err != nil {
			return r, err
		}
		var row ledger.Row
		v := attempt.do(ctx, s, clk, body, &row)
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		r.spent += row.PromptTokens.Or(0) + row.CompletionTokens.Or(0)
		if row.Outcome == ledger.OK || row.Outcome == ledger.Empty {
			r.took = time.Duration(row.EndUS-row.SentUS.Or(row.EndUS)) * time.Microsecond
			r.completionTokens = row.CompletionTokens
			return r, nil
		}
		if m.adapt(&r, &row, v.message) {
			continue
		}
		reason := fmt.Sprintf("%s: %s", row.Outcome, row.Error)
		if !retryable(row.Outcome, v) {
			return r, &NotReadyError{Reason: reason, Hint: hint(&row)}
		}
		wait := min(backoff(try, v.retryAfter), 2*time.Second)
		if v.retryAfter.OK {
			wait = backoff(try, v.retryAfter)
		}
		if time.Until(deadline) < wait {
			return r, c.never(ctx, t, &row, reason)
		}
		if reason != said {
			o.Log("waiting for the endpoint: " + reason)
			said = reason
		}
		select {
		case <-ctx.Done():
			return r, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

func orForever(d time.Duration) time.Duration {
	if d <= 0 {
		return 1 << 62
	}
	return d
}

// canary is a request for one token with the roles of the real ones, so that a template that refuses them does so before the run,
// and other words, so that it warms no prefix cache.
func (m *bodyMaker) canary(roles []loadgen.Message) ([]byte, error) {
	one := *m
	one.maxTokens = 1
	short := make([]loadgen.Message, len(roles))
	for i, msg := range roles {
		short[i] = loadgen.Message{Role: msg.Role, Content: "Are you ready?"}
	}
	return one.append(nil, short, extras{})
}

// adapt changes what the server has refused and may take in another form; false if there is nothing to change.
func (m *bodyMaker) adapt(r *readiness, row *ledger.Row, message string) bool {
	if status := row.HTTPStatus.Or(0); status != http.StatusBadRequest && status != http.StatusUnprocessableEntity {
		return false
	}
	switch {
	case m.includeUsage && strings.Contains(message, "stream_options"):
		m.includeUsage, r.usageRefused = false, true
	case m.tokensMember == "max_tokens" && strings.Contains(message, "max_completion_tokens"):
		m.tokensMember, r.memberChanged = "max_completion_tokens", true
	default:
		return false
	}
	return true
}

const keyHint = "give the key with --api-key-file or COTENANT_API_KEY"

func hint(row *ledger.Row) string {
	switch row.HTTPStatus.Or(0) {
	case http.StatusUnauthorized, http.StatusForbidden:
		return keyHint
	case http.StatusNotFound:
		return "check --endpoint and --model"
	}
	switch row.Outcome {
	case ledger.Template:
		return "the model's chat template refuses these roles; give prompts of your own with --prompts"
	case ledger.NonStreamed:
		return "the endpoint doesn't stream, so there is no time to first token to measure"
	case ledger.BadBody:
		return "is this an OpenAI-compatible endpoint?"
	case ledger.Compressed:
		return "a proxy compresses the stream; reach the server past it"
	}
	return ""
}

// never explains an endpoint that wasn't ready in time.
func (c *client) never(ctx context.Context, t target, row *ledger.Row, reason string) error {
	switch row.Outcome {
	case ledger.TimeoutHeaders, ledger.TimeoutIdle, ledger.TimeoutTotal:
		if models, err := c.models(ctx, t); err == nil && len(models) > 0 {
			return &NotReadyError{Reason: "it lists its models but completions hang", Hint: "a stale server looks so: see cotenant recover; " + reason}
		}
	}
	return &NotReadyError{Reason: reason}
}

// statusError is an answer that isn't a list.
type statusError struct {
	status int
	body   string
}

func (e *statusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.status, e.body) }

// models lists the endpoint's models.
func (c *client) models(ctx context.Context, t target) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.api+"/models", nil)
	if err != nil {
		return nil, err
	}
	req.Header = c.header.Clone()
	req.Header.Set("Accept", "application/json")
	req.Header.Del("Content-Type")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, errors.New(describe(err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return nil, errors.New(describe(err))
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &statusError{resp.StatusCode, c.redact.text(string(body))}
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("its list of models can't be read: %w", err)
	}
	var ids []string
	for _, m := range list.Data {
		if m.ID != "" {
			ids = append(ids, m.ID)
		}
	}
	return ids, nil
}

// pickModel asks the endpoint for its one model.
func (c *client) pickModel(ctx context.Context, o *Options, t target) (string, error) {
	deadline := time.Now().Add(o.ReadyTimeout)
	for {
		ids, err := c.models(ctx, t)
		switch {
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case err == nil && len(ids) == 1:
			return ids[0], nil
		case err == nil && len(ids) > 1:
			return "", usage("the endpoint serves several models (%s): pick one with --model", strings.Join(ids[:min(len(ids), 8)], ", "))
		case err == nil:
			err = errors.New("it lists no model; name one with --model")
		}
		var refused *statusError
		if errors.As(err, &refused) && (refused.status == http.StatusUnauthorized || refused.status == http.StatusForbidden) {
			return "", &NotReadyError{Reason: err.Error(), Hint: keyHint}
		}
		if time.Until(deadline) < time.Second {
			return "", &NotReadyError{Reason: err.Error()}
		}
		o.Log("waiting for the endpoint's list of models: " + err.Error())
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(time.Second):
		}
	}
}
