package ledger

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Made by `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout`.
const (
	opensslPrivate = `-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIF2ZVBdWQFCZSUD8TjLqJmSn3D13zNJn85s3I/B2p30K
-----END PRIVATE KEY-----
`
	opensslPublic = `-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA2QlgvM5w8isOCv2SFelFNakChvMKh7ySNxuRkl9u/cE=
-----END PUBLIC KEY-----
`
	// SHA-256 of the public key's DER, and openssl's signature over DSSE's own example.
	opensslKeyID     = "bb608067d85d6bf51d3c1206a08c2ade9de1bf98b9ad9a7b3a65b0479dab4404"
	opensslSignature = "l3j8HwqSkIcDTEHmJ6GQalRnw0DE2b8oRA88934pz+0L68NDn1Csp+QL+ZGntpQ6lKLomMP9aHJGmR2fnpikCw=="
)

// TestDSSE checks the pre-authentication encoding by the example of DSSE's protocol.md, signed by openssl.
func TestDSSE(t *testing.T) {
	if got, want := string(pae("http://example.com/HelloWorld", []byte("hello world"))), "DSSEv1 29 http://example.com/HelloWorld 11 hello world"; got != want {
		t.Errorf("PAE %q, want %q", got, want)
	}
	public, err := ParsePublicKey([]byte(opensslPublic))
	if err != nil {
		t.Fatal(err)
	}
	private, err := ParsePrivateKey([]byte(opensslPrivate))
	if err != nil {
		t.Fatal(err)
	}
	if !public.Equal(private.Public()) {
		t.Error("the keys don't belong together")
	}
	if id, err := KeyID(public); err != nil || id != opensslKeyID {
		t.Errorf("key id %s, %v", id, err)
	}
	sig, err := base64.StdEncoding.DecodeString(opensslSignature)
	if err != nil {
		t.Fatal(err)
	}
	env := Envelope{Payload: []byte("hello world"), PayloadType: "http://example.com/HelloWorld", Signatures: []Signature{{"", sig}}}
	if _, err := env.CheckSignature(public); err != nil {
		t.Errorf("openssl's signature: %v", err)
	}
	for i := range sig {
		for bit := range 8 {
			bad := bytes.Clone(sig)
			bad[i] ^= 1 << bit
			env.Signatures[0].Sig = bad
			if _, err := env.CheckSignature(public); err == nil {
				t.Fatalf("bit %d of byte %d may be changed", bit, i)
			}
		}
	}
}

func TestKeys(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "public for private": opensslPublic, "garbage": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
		"RSA": `-----BEGIN PRIVATE KEY-----
MIICeAIBADANBgkqhkiG9w0BAQEFAASCAmIwggJeAgEAAoGBAL40pcwnIDczCCNG
SWBqhElU7XzJTWRGo581JLIOac1H/Yc0ZUbV8FOy5/y6l2sHRbywCaZrcyU0mFkg
gkIdDbwU+9pLW2bCeFIWY6X6n6HTe6vkHrvtYZGpqc2dEVCINsm39JgoGuNsPEED
nSA+Z7Ta6PqZm9fSTkIUHIJJAOw5AgMBAAECgYEAmwk412ZQ6Q1spawF5VQNTeSu
y1ceAQ1fE0dzCLuc29nBOnKn1oxNnzulwqepAnFkE3/97auJqJrtT0CjTBZ4eR16
KLBE00cDaNB40WDEZuVsjOBLtPnlt1rYMSuVyzD3T6byBmHFdzS5PEHthTbYa+ti
cdaEMHxF7pMzgHp3JwECQQDdPRIggH5kWPtsvhYPG9iOy/5F+oAxo87bMsh4O9sG
gxHc6qHykjhC1r0nq1TU4tVedBQYsL6GQmlv+QqUHWNZAkEA3BdVUV0UEI0I/8t/
r4abDpV0CfmiHPu72t/WVqoTS1rbOfO23Y1+m1TXviqMlBwnGTTREVu0GvnT8ujE
qpUT4QJBANFu9rH98ahc8+ZFK+yxl5fWVKc6NBDJ2RB4Sn5Ha1gGy+ot05EmCkx7
rCTZdDzzXrlDeaLF7hZ62AU/5FvCVkECQCEn/rloLUqlBJMMhCrcO2XCDB4olkyJ
e+5oRDEAJDH4+QfM+GJ+G3GpIWtLm6wAZb99XnWf/A0IT+7LND2CgeECQQCNJpbT
VF2ta3HHeiyCJGAJyFngXehdAG0BGr4ZTOYzF/WB4PCsMkMwM5uYCzUeueSiqjGm
xOAGS558GeWsa8Mt
-----END PRIVATE KEY-----
`, "two": opensslPrivate + opensslPrivate,
	} {
		if _, err := ParsePrivateKey([]byte(text)); err == nil {
			t.Errorf("%s was taken as a private key", name)
		}
	}
	if _, err := ParsePublicKey([]byte(opensslPrivate)); err == nil {
		t.Error("a private key was taken as a public one")
	}
}

func TestSign(t *testing.T) {
	dir := finishedRun(t)
	private, err := ParsePrivateKey([]byte(opensslPrivate))
	if err != nil {
		t.Fatal(err)
	}
	if err := Sign(dir, private); err != nil {
		t.Fatal(err)
	}
	public := private.Public().(ed25519.PublicKey)
	other := ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)
	if k, err := CheckSignature(dir, other, public); err != nil || !k.Equal(public) {
		t.Fatalf("signed by %x, %v", k, err)
	}
	if _, err := CheckSignature(dir, other); !errors.Is(err, ErrNoSignature) {
		t.Errorf("another key: %v", err)
	}
	if _, err := CheckSignature(dir); !errors.Is(err, ErrNoSignature) {
		t.Errorf("no key: %v", err)
	}
	for _, name := range []string{ConfigFile, RowsFile, ResourcesFile, EventsFile, LedgerFile} {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := append(bytes.Clone(b), '\n') // for lines an empty one more, for documents white space
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := CheckSignature(dir, public); err == nil {
			t.Errorf("%s may be changed", name)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := CheckSignature(dir, public); err != nil {
		t.Errorf("put back: %v", err)
	}
}

func TestReadEnvelopeRefuses(t *testing.T) {
	dir := finishedRun(t)
	if err := Sign(dir, ed25519.NewKeyFromSeed(make([]byte, 32))); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, EnvelopeFile))
	if err != nil {
		t.Fatal(err)
	}
	env, _, err := ReadEnvelope(b)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(e *Envelope){
		"another payload type": func(e *Envelope) { e.PayloadType = "application/json" },
		"no signature":         func(e *Envelope) { e.Signatures = nil },
		"many signatures":      func(e *Envelope) { e.Signatures = make([]Signature, 17) },
		"another predicate type": func(e *Envelope) {
			e.Payload = []byte(strings.Replace(string(e.Payload), "soak-run:1", "soak-run:2", 1))
		},
		"no statement": func(e *Envelope) { e.Payload = []byte("{}") },
	} {
		e := env
		change(&e)
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadEnvelope(b); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}
