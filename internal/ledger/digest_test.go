package ledger

import (
	"fmt"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
)

// TestTree compares our right-edge tree with tlog's for all sizes, and shows that tlog's proofs hold against our root.
func TestTree(t *testing.T) {
	var tree Tree
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(indexes))
		for i, x := range indexes {
			out[i] = stored[x]
		}
		return out, nil
	})
	for n := int64(0); n < 260; n++ {
		want, err := tlog.TreeHash(n, reader)
		if err != nil {
			t.Fatal(err)
		}
		if tree.Root() != want {
			t.Fatalf("%d records: root %v, want %v", n, tree.Root(), want)
		}
		if n > 0 {
			proof, err := tlog.ProveRecord(n, n/2, reader)
			if err != nil {
				t.Fatal(err)
			}
			if err := tlog.CheckRecord(proof, n, tree.Root(), n/2, tlog.RecordHash(fmt.Appendf(nil, "line %d", n/2))); err != nil {
				t.Fatal(err)
			}
		}
		record := fmt.Appendf(nil, "line %d", n)
		hashes, err := tlog.StoredHashes(n, record, reader)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, hashes...)
		tree.Add(record)
	}
}

func TestCommit(t *testing.T) {
	// HMAC-SHA-256 of "output", 0x00, "42" under 32 bytes of 0x01, computed with Python's hmac module.
	c, err := NewCommitter("0101010101010101010101010101010101010101010101010101010101010101")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Commit(LabelOutput, []byte("42")), "949a830036c5430f3d4d0c1ef2a66b59"; got != want {
		t.Errorf("commitment %s, want %s", got, want)
	}
	if c.Commit(LabelPrompt, []byte("42")) == c.Commit(LabelOutput, []byte("42")) {
		t.Error("two labels give one commitment")
	}
	if got := c.Commit(LabelBase, nil); got != "" {
		t.Errorf("nothing is committed to as %q", got)
	}
	for _, bad := range []string{"", "01", "zz01010101010101010101010101010101010101010101010101010101010101"} {
		if _, err := NewCommitter(bad); err == nil {
			t.Errorf("secret %q was taken", bad)
		}
	}
	if a, b := NewSecret(), NewSecret(); a == b || len(a) != 64 {
		t.Errorf("secrets %q, %q", a, b)
	}
}
