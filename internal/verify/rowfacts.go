package verify

import (
	"fmt"
	"net/url"
	"strings"

	"cotenant/internal/ledger"
)

// timeOrder says which two times of a row can't both be true, empty if none.
func timeOrder(r *ledger.Row) string {
	last, name := r.QueuedUS, "queued"
	for _, t := range []struct {
		name string
		at   ledger.Opt
	}{{"picked", ledger.Some(r.PickedUS)}, {"sent", r.SentUS}, {"headers", r.HeadersUS}, {"first_event", r.FirstEventUS},
		{"first_token", r.FirstTokenUS}, {"last_token", r.LastTokenUS}, {"end", ledger.Some(r.EndUS)}} {
		if !t.at.OK {
			continue
		}
		if t.at.V < last {
			return fmt.Sprintf("%s at %d us comes before %s at %d us", t.name, t.at.V, name, last)
		}
		last, name = t.at.V, t.name
	}
	if c := r.FirstContentUS; c.OK && (!r.FirstTokenUS.OK || c.V < r.FirstTokenUS.V || c.V > r.LastTokenUS.V) {
		return fmt.Sprintf("first_content at %d us lies outside first_token to last_token", c.V)
	}
	if r.FirstTokenUS.OK != r.LastTokenUS.OK {
		return "of first_token and last_token one is null"
	}
	return ""
}

// outcomeFits says what contradicts a row's outcome, empty if nothing does.
func outcomeFits(r *ledger.Row) string {
	status, has := r.HTTPStatus.Get()
	if r.Outcome == ledger.OK {
		switch {
		case status != 200:
			return fmt.Sprintf("ok with HTTP status %d", status)
		case !r.SentUS.OK || !r.HeadersUS.OK || !r.FirstEventUS.OK:
			return "ok without the times of sent, headers or first_event"
		case r.Deltas < 1 || r.TextBytes < 1 || r.OutputCommit == "":
			return "ok without text"
		case r.FinishReason == "" && !r.Done:
			return "ok with neither finish_reason nor [DONE]"
		case r.Error != "":
			return "ok with an error"
		case r.WastedTokens != 0:
			return "ok with wasted tokens"
		}
		return ""
	}
	if r.Oracle != ledger.OracleNone {
		return fmt.Sprintf("%s with the oracle's verdict %s", r.Outcome, r.Oracle)
	}
	fits := true
	switch r.Outcome {
	case ledger.HTTP429:
		fits = status == 429
	case ledger.HTTP5xx:
		fits = status >= 500 && status <= 599
	case ledger.HTTP4xx: // a redirect is one: it is not followed
		fits = status >= 300 && status <= 499 && status != 429
	case ledger.Template:
		fits = status >= 400 && status <= 599
	case ledger.Empty:
		fits = status == 200 && r.Deltas == 0
	case ledger.Truncated:
		fits = status == 200 && !r.Done
	case ledger.InbandError, ledger.BadJSON, ledger.NonStreamed, ledger.Oversize, ledger.Compressed:
		fits = status == 200
	case ledger.BadBody:
		fits = status < 300
	case ledger.TransportBefore, ledger.TimeoutHeaders:
		fits = !has && !r.HeadersUS.OK
	}
	if !fits {
		return fmt.Sprintf("%s with HTTP status %d, %d deltas, finish_reason %q", r.Outcome, status, r.Deltas, r.FinishReason)
	}
	return ""
}

// tokensFit says what can't be true of a result's usage, empty if all can.
func tokensFit(r *ledger.Row, maxTokens int64) string {
	prompt, completion := r.PromptTokens.V, r.CompletionTokens.V
	switch {
	case prompt < 1:
		return "no prompt token"
	case completion < 1:
		return "text and no completion token"
	case maxTokens > 0 && completion > maxTokens:
		return fmt.Sprintf("%d completion tokens, %d were allowed", completion, maxTokens)
	case r.Deltas > completion:
		return fmt.Sprintf("%d deltas of %d completion tokens", r.Deltas, completion)
	case r.CachedTokens.Or(0) > prompt:
		return fmt.Sprintf("%d cached of %d prompt tokens", r.CachedTokens.V, prompt)
	}
	return ""
}

// textTokens is ledger's definition written once more: an answer that the model ended may count one token that has no text.
func textTokens(r *ledger.Row) int64 {
	n, ok := r.CompletionTokens.Get()
	switch {
	case !ok:
		return r.Deltas
	case r.FinishReason == "stop" && n-r.Deltas == 1:
		return n - 1
	}
	return n
}

// buffered is ledger's definition written once more.
func buffered(r *ledger.Row) bool {
	if textTokens(r) < 2 || !r.SentUS.OK || !r.FirstTokenUS.OK || !r.LastTokenUS.OK {
		return false
	}
	spread, latency := r.LastTokenUS.V-r.FirstTokenUS.V, r.EndUS-r.SentUS.V
	return spread == 0 || spread < latency/100 || spread < 50*(r.Deltas-1)
}

// secrets lists what must not stand in clear anywhere but in config.json.
func secrets(cfg *ledger.Config) []string {
	var out []string
	for _, s := range []string{cfg.Secret, cfg.PlaceSecret} {
		if s != "" {
			out = append(out, s)
		}
	}
	for _, raw := range []string{cfg.Endpoint, cfg.MetricsURL} {
		if raw == "" {
			continue
		}
		out = append(out, raw)
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" {
			continue
		}
		out = append(out, u.Host)
		if cfg.EndpointScope != ledger.ScopeLoopback && u.Hostname() != "" {
			out = append(out, u.Hostname())
		}
	}
	return out
}

// clear looks for secrets in free text.
func (f *facts) clear(where any, texts ...string) {
	for _, t := range texts {
		for _, s := range f.names {
			if strings.Contains(t, s) {
				f.leak.add("%s shows the endpoint's address or the run's secret in clear", where)
				return
			}
		}
	}
}
