package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Public returns the config without what is private: the endpoint, the metrics' address and both secrets are empty. What stands beside
// each commits to it. The public form of a public form is itself.
func (c Config) Public() Config {
	c.Endpoint, c.MetricsURL, c.Secret, c.PlaceSecret = "", "", "", ""
	return c
}

// PublicBytes is the canonical form of the public form: what config_sha256 and the entry of config.json in files[] are over.
func (c Config) PublicBytes() ([]byte, error) {
	b, err := Marshal(c.Public())
	if err != nil {
		return nil, fmt.Errorf("encoding the config's public form: %w", err)
	}
	return b, nil
}

// HashConfig returns config_sha256.
func HashConfig(c Config) (string, error) {
	b, err := c.PublicBytes()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// Seal sets what commits to the private members.
func (c *Config) Seal() error {
	place, err := NewCommitter(c.PlaceSecret)
	if err != nil {
		return fmt.Errorf("place_secret: %w", err)
	}
	if _, err := NewCommitter(c.Secret); err != nil {
		return fmt.Errorf("secret: %w", err)
	}
	c.SecretSHA256, c.PlaceSHA256 = hashText(c.Secret), hashText(c.PlaceSecret)
	c.EndpointCommitment = place.Commit(LabelEndpoint, []byte(c.Endpoint))
	c.MetricsHash = place.Commit(LabelMetrics, []byte(c.MetricsURL))
	return nil
}

// Opens says which private member that is there isn't what stands beside it commits to, empty if none; asked is how many could be asked.
func (c *Config) Opens() (wrong string, asked int) {
	check := func(name, got, want string) {
		if asked++; got != want && wrong == "" {
			wrong = fmt.Sprintf("%s gives %s, the config has %s", name, got, want)
		}
	}
	if c.Secret != "" {
		check("secret", hashText(c.Secret), c.SecretSHA256)
	}
	if c.PlaceSecret == "" {
		return wrong, asked
	}
	check("place_secret", hashText(c.PlaceSecret), c.PlaceSHA256)
	place, err := NewCommitter(c.PlaceSecret)
	if err != nil {
		return err.Error(), asked
	}
	if c.Endpoint != "" {
		check("endpoint", place.Commit(LabelEndpoint, []byte(c.Endpoint)), c.EndpointCommitment)
	}
	if c.MetricsURL != "" {
		check("metrics_url", place.Commit(LabelMetrics, []byte(c.MetricsURL)), c.MetricsHash)
	}
	return wrong, asked
}

func hashText(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
