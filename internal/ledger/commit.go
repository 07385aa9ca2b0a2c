package ledger

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Labels of commitments: what kind of bytes is committed to, so that equal bytes of two kinds don't show.
const (
	LabelEndpoint = "endpoint"
	LabelBase     = "base"
	LabelPrompt   = "prompt"
	LabelOutput   = "output"
	LabelPark     = "park"
	LabelGPU      = "gpu"
	LabelMetrics  = "metrics"
)

// NewSecret returns 32 random bytes in hex: the key of a run's commitments.
func NewSecret() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// NewRunID returns 16 random bytes in hex.
func NewRunID() string { return NewSecret()[:32] }

// A Committer makes commitments under one secret: the first 16 bytes, in hex, of HMAC-SHA-256 over label, 0x00, data
// (truncated as RFC 2104, 5 allows). Whoever hasn't the secret can't guess low-entropy data from them, and equal data
// shows as equal. It is safe for concurrent use.
type Committer struct{ key []byte }

// NewCommitter takes a secret of 64 hex digits.
func NewCommitter(secret string) (*Committer, error) {
	key, err := hex.DecodeString(secret)
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("the run's secret isn't 64 hexadecimal digits")
	}
	return &Committer{key}, nil
}

// Commit returns the commitment to data, empty for no data.
func (c *Committer) Commit(label string, data []byte) string {
	if len(data) == 0 {
		return ""
	}
	m := hmac.New(sha256.New, c.key)
	m.Write([]byte(label))
	m.Write([]byte{0})
	m.Write(data)
	return hex.EncodeToString(m.Sum(nil)[:16])
}
