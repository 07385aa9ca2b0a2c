package ledger

import (
	"path/filepath"
	"testing"
)

func TestSmoke(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	cfg := Config{RunID: NewRunID(), RunOrdinal: 1, Secret: NewSecret(), Contract: ContractPlain, Contexts: 2, TurnsPerContext: 1, Workers: 1, MaxAttempts: 1,
		Endpoint: "http://127.0.0.1:1", EndpointScope: ScopeLoopback, ResourceUS: 1000000}
	w, err := Create(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(2) {
		if err := w.Row(Row{Context: i, Attempt: 1, PickedUS: i * 10, SentUS: Some(i*10 + 1), EndUS: i*10 + 5, Outcome: OK, Oracle: OracleNone, PromptCommit: "00112233445566778899aabbccddeeff"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Event(Event{TUS: 20, Kind: EventEnd, Detail: StatusFinished}); err != nil {
		t.Fatal(err)
	}
	l, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	b, _ := Marshal(l)
	t.Logf("%s", b)
}
