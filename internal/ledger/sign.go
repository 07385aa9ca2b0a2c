package ledger

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
)

// Names of the signed statement (in-toto Statement v1) and of its envelope (DSSE 1.0).
const (
	PayloadType   = "application/vnd.in-toto+json"
	StatementType = "https://in-toto.io/Attestation/v1"
	PredicateType = "urn:cotenant:soak-run:1"
)

// Attestation is an in-toto Statement: it says which bytes the signer means: all five files of a run folder.
type Attestation struct {
	Type          string    `json:"_type"`
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Predicate `json:"predicate"`
}

// Subject is one file.
type Subject struct {
	Name   string `json:"name"`
	Digest Digest `json:"digest"`
}

// Digest of a file, lower-case hex.
type Digest struct {
	SHA256 string `json:"sha256"`
}

// Predicate repeats what tells a run apart.
type Predicate struct {
	SchemaVersion int64  `json:"schema_version"`
	Operation     string `json:"operation"`
	RunID         string `json:"run_id"`
	FilesRoot     string `json:"files_root"`
	Status        string `json:"status"`
	Admitted      bool   `json:"admitted"`
}

// Envelope is ledger.dsse.json.
type Envelope struct {
	Payload     []byte      `json:"payload"` // the statement's bytes; base64 in JSON
	PayloadType string      `json:"payloadType"`
	Signatures  []Signature `json:"signatures"`
}

// Signature of one key over the pre-authentication encoding of type and payload.
type Signature struct {
	KeyID string `json:"keyid"` // KeyID of the public key; a hint, never trusted
	Sig   []byte `json:"sig"`
}

// Sign writes ledger.dsse.json into dir: a statement over the files as they lie there.
func Sign(dir string, key ed25519.PrivateKey) error {
	f, err := OpenFolder(dir)
	if err != nil {
		return err
	}
	st, err := f.statement()
	if err != nil {
		return err
	}
	payload, err := Marshal(st)
	if err != nil {
		return fmt.Errorf("encoding the statement: %w", err)
	}
	id, err := KeyID(key.Public().(ed25519.PublicKey))
	if err != nil {
		return err
	}
	env := Envelope{payload, PayloadType, []Signature{{id, ed25519.Sign(key, pae(PayloadType, payload))}}}
	b, err := json.Marshal(env)
	if err != nil {
		return fmt.Errorf("encoding the envelope: %w", err)
	}
	return replaceFile(filepath.Join(dir, EnvelopeFile), b, 0o644)
}

// statement describes the folder as it is.
func (f *Folder) statement() (Attestation, error) {
	files, err := f.Files()
	if err != nil {
		return Attestation{}, err
	}
	b, err := f.ReadFile(LedgerFile)
	if err != nil {
		return Attestation{}, err
	}
	l, err := ReadLedger(b)
	if err != nil {
		return Attestation{}, fmt.Errorf("reading %s: %w", LedgerFile, err)
	}
	root, err := FilesRoot(files)
	if err != nil {
		return Attestation{}, err
	}
	st := Attestation{Type: StatementType, PredicateType: PredicateType, Predicate: Predicate{
		SchemaVersion: SchemaVersion, Operation: Operation, RunID: f.Config.RunID, FilesRoot: root, Status: l.Status, Admitted: l.Admission.Admitted}}
	for _, file := range files {
		st.Subject = append(st.Subject, Subject{file.Name, Digest{file.SHA256}})
	}
	sum := sha256.Sum256(b)
	st.Subject = append(st.Subject, Subject{LedgerFile, Digest{hex.EncodeToString(sum[:])}})
	return st, nil
}

// ReadEnvelope reads a DSSE envelope and the statement in it. It checks no signature.
func ReadEnvelope(b []byte) (Envelope, Attestation, error) {
	var env Envelope
	if len(b) > MaxDocument {
		return Envelope{}, Attestation{}, fmt.Errorf("%d bytes: the limit is %d", len(b), MaxDocument)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&env); err != nil {
		return Envelope{}, Attestation{}, fmt.Errorf("reading the envelope: %w", err)
	}
	if dec.More() {
		return Envelope{}, Attestation{}, errors.New("reading the envelope: data after it")
	}
	if env.PayloadType != PayloadType {
		return Envelope{}, Attestation{}, fmt.Errorf("payloadType %q: want %q", env.PayloadType, PayloadType)
	}
	if len(env.Signatures) == 0 || len(env.Signatures) > 16 {
		return Envelope{}, Attestation{}, fmt.Errorf("%d signatures: want 1 to 16", len(env.Signatures))
	}
	var st Attestation
	if err := Unmarshal(env.Payload, &st); err != nil {
		return Envelope{}, Attestation{}, fmt.Errorf("reading the signed statement: %w", err)
	}
	if st.Type != StatementType || st.PredicateType != PredicateType {
		return Envelope{}, Attestation{}, fmt.Errorf("statement %q of %q: want %q of %q", st.Type, st.PredicateType, StatementType, PredicateType)
	}
	return env, st, nil
}

// ErrNoSignature says that no signature of an envelope is by any of the keys.
var ErrNoSignature = errors.New("no signature is by any of the given keys")

// CheckSignature reports which of keys signed the envelope's payload, the bytes as they came.
func (e *Envelope) CheckSignature(keys ...ed25519.PublicKey) (ed25519.PublicKey, error) {
	message := pae(e.PayloadType, e.Payload)
	for _, s := range e.Signatures {
		for _, k := range keys {
			if len(k) == ed25519.PublicKeySize && ed25519.Verify(k, message, s.Sig) {
				return k, nil
			}
		}
	}
	return nil, ErrNoSignature
}

// CheckSubjects compares a statement with the folder's files and ledger.
func (f *Folder) CheckSubjects(st Attestation) error {
	want, err := f.statement()
	if err != nil {
		return err
	}
	for i, s := range want.Subject {
		if i >= len(st.Subject) || st.Subject[i] != s {
			return fmt.Errorf("the statement's subject %d isn't %s as it lies here", i, s.Name)
		}
	}
	if len(st.Subject) != len(want.Subject) {
		return fmt.Errorf("the statement has %d subjects: want %d", len(st.Subject), len(want.Subject))
	}
	if st.Predicate != want.Predicate {
		return fmt.Errorf("the statement's predicate isn't this run's")
	}
	return nil
}

// CheckSignature checks dir's envelope: the files are those that it names, and one of keys signed it. It returns that key.
func CheckSignature(dir string, keys ...ed25519.PublicKey) (ed25519.PublicKey, error) {
	f, err := OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	b, err := f.ReadFile(EnvelopeFile)
	if err != nil {
		return nil, err
	}
	env, st, err := ReadEnvelope(b)
	if err != nil {
		return nil, err
	}
	key, err := env.CheckSignature(keys...)
	if err != nil {
		return nil, err
	}
	return key, f.CheckSubjects(st)
}

// pae is DSSE's pre-authentication encoding (DSSE 1.0, protocol.md).
func pae(payloadType string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload)
}

// KeyID is the SHA-256 of a public key's SPKI, in hex.
func KeyID(key ed25519.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encoding the public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// ParsePrivateKey reads an ed25519 key in PKCS #8 PEM.
func ParsePrivateKey(text []byte) (ed25519.PrivateKey, error) {
	der, err := pemBlock(text, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("reading the private key: %w", err)
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the private key is a %T: want ed25519", k)
	}
	return key, nil
}

// ParsePublicKey reads an ed25519 key in SPKI PEM.
func ParsePublicKey(text []byte) (ed25519.PublicKey, error) {
	der, err := pemBlock(text, "PUBLIC KEY")
	if err != nil {
		return nil, err
	}
	k, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("reading the public key: %w", err)
	}
	key, ok := k.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("the public key is a %T: want ed25519", k)
	}
	return key, nil
}

func pemBlock(text []byte, kind string) ([]byte, error) {
	block, rest := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("no PEM block: want %s", kind)
	}
	if block.Type != kind {
		return nil, fmt.Errorf("PEM block %q: want %q (openssl genpkey -algorithm ed25519 makes one)", block.Type, kind)
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("data after the PEM block")
	}
	return block.Bytes, nil
}
