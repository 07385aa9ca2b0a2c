package verify

import (
	"bytes"
	"fmt"
	"strings"

	"cotenant/internal/ledger"
)

// firstOf makes a check of a violation that gather found.
func firstOf(pick func(*facts) *violation) func(*evidence) (string, string) {
	return func(e *evidence) (string, string) {
		if v := pick(e.facts); v.count > 0 {
			return v.String(), ""
		}
		return "", ""
	}
}

func canonicalLedger(e *evidence) (string, string) {
	b, err := ledger.Marshal(e.claimed)
	if err != nil {
		return err.Error(), ""
	}
	if bytes.Equal(b, e.ledgerBytes) {
		return "", ""
	}
	n := 0
	for n < len(b) && n < len(e.ledgerBytes) && b[n] == e.ledgerBytes[n] {
		n++
	}
	return fmt.Sprintf("ledger.json departs from the canonical form of its content at byte %d of %d", n, len(e.ledgerBytes)), ""
}

func readableLines(e *evidence) (string, string) {
	if e.readErr != nil {
		return e.readErr.Error(), ""
	}
	return "", ""
}

func fileHashes(e *evidence) (string, string) {
	if len(e.claimed.Files) != len(e.actual) {
		return fmt.Sprintf("files[] has %d members: want %d", len(e.claimed.Files), len(e.actual)), ""
	}
	for i, want := range e.actual {
		got := e.claimed.Files[i]
		got.MerkleRoot = want.MerkleRoot
		if d := difference(fmt.Sprintf("/files/%d", i), got, want); d != "" {
			return want.Name + ": " + d, ""
		}
	}
	return "", ""
}

func merkleRoots(e *evidence) (string, string) {
	for i, want := range e.actual {
		if i < len(e.claimed.Files) && e.claimed.Files[i].MerkleRoot != want.MerkleRoot {
			return fmt.Sprintf("%s: the ledger's root is %s, its lines give %s", want.Name, e.claimed.Files[i].MerkleRoot, want.MerkleRoot), ""
		}
	}
	return "", ""
}

func filesRoot(e *evidence) (string, string) {
	root, err := ledger.FilesRoot(e.claimed.Files)
	if err != nil {
		return err.Error(), ""
	}
	if root != e.claimed.FilesRoot {
		return fmt.Sprintf("files_root is %s, files[] gives %s", e.claimed.FilesRoot, root), ""
	}
	return "", ""
}

func configHash(e *evidence) (string, string) {
	if e.claimed.ConfigSHA256 != e.folder.ConfigSHA256 {
		return fmt.Sprintf("the ledger's config_sha256 is %s, config.json's is %s", e.claimed.ConfigSHA256, e.folder.ConfigSHA256), ""
	}
	if v := &e.facts.badConfigHash; v.count > 0 {
		return v.String(), ""
	}
	return "", ""
}

func registeredFirst(e *evidence) (string, string) {
	f := e.facts
	switch {
	case f.firstKind == "":
		return "events.jsonl is empty: no start event has registered the config", ""
	case f.badStart.count > 0:
		return f.badStart.String(), ""
	}
	return "", ""
}

func repeatsConfig(e *evidence) (string, string) {
	a, c := e.claimed, e.computed
	var out []string
	for _, p := range []struct {
		at                string
		claimed, computed any
	}{
		{"/workload", a.Workload, c.Workload}, {"/client", a.Client, c.Client},
	} {
		if d := difference(p.at, p.claimed, p.computed); d != "" {
			out = append(out, d)
		}
	}
	for _, p := range []struct {
		at                string
		claimed, computed any
	}{
		{"run_id", a.RunID, c.RunID}, {"run_ordinal", a.RunOrdinal, c.RunOrdinal}, {"nonce", a.Nonce, c.Nonce},
		{"started_wall_us", a.StartedWallUS, c.StartedWallUS}, {"contract", a.Contract, c.Contract}, {"contexts", a.Contexts, c.Contexts},
		{"turns_per_context", a.TurnsPerContext, c.TurnsPerContext}, {"workers", a.Workers, c.Workers}, {"model", a.Model, c.Model},
		{"endpoint_scope", a.EndpointScope, c.EndpointScope}, {"endpoint_commitment", a.EndpointCommitment, c.EndpointCommitment},
		{"in_process", a.InProcess, c.InProcess}, {"shared", a.Shared, c.Shared}, {"base", a.Base, c.Base}, {"max_tokens", a.MaxTokens, c.MaxTokens},
	} {
		if p.claimed != p.computed {
			out = append(out, fmt.Sprintf("/%s is %v, the config gives %v", p.at, p.claimed, p.computed))
		}
	}
	return strings.Join(out, "; "), ""
}

func endpointOpens(e *evidence) (string, string) {
	switch wrong, asked := e.config.Opens(); {
	case wrong != "":
		return wrong, ""
	case asked == 0:
		return "", "the config is published without what it commits to"
	}
	return "", ""
}

func leaks(e *evidence) (string, string) {
	for _, s := range secrets(e.config) {
		if bytes.Contains(e.ledgerBytes, []byte(s)) {
			return "ledger.json shows the endpoint's address or the run's secret in clear", ""
		}
	}
	if v := &e.facts.leak; v.count > 0 {
		return v.String(), ""
	}
	return "", ""
}

func definitions(e *evidence) (string, string) {
	if d := difference("/definitions", e.claimed.Definitions, ledger.Definitions()); d != "" {
		return "ledger.json: " + d, ""
	}
	if d := difference("/definitions", e.config.Definitions, ledger.Definitions()); d != "" {
		return "config.json: " + d, ""
	}
	return "", ""
}

func signedFiles(e *evidence) (string, string) {
	if !e.hasEnvelope() {
		return "", "the run isn't signed"
	}
	b, err := e.folder.ReadFile(ledger.EnvelopeFile)
	if err != nil {
		return err.Error(), ""
	}
	_, st, err := ledger.ReadEnvelope(b)
	if err == nil {
		err = e.folder.CheckSubjects(st)
	}
	if err != nil {
		return err.Error(), ""
	}
	return "", ""
}

func signature(e *evidence) (string, string) {
	if len(e.opts.Keys) == 0 {
		return "", "no key was given to check a signature with"
	}
	b, err := e.folder.ReadFile(ledger.EnvelopeFile)
	if err != nil {
		return "a key was given, but " + err.Error(), ""
	}
	env, _, err := ledger.ReadEnvelope(b)
	if err != nil {
		return err.Error(), ""
	}
	key, err := env.CheckSignature(e.opts.Keys...)
	if err != nil {
		return err.Error(), ""
	}
	if e.signedBy, err = ledger.KeyID(key); err != nil {
		return err.Error(), ""
	}
	return "", ""
}
