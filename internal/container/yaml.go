package container

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v4"
)

// maxNodes bounds a Compose file's nodes after its aliases are replaced by what they name. One service has about a hundred.
const maxNodes = 20_000

// checkAliases refuses a file whose aliases name what contains them, or multiply: the loader would not end.
func checkAliases(content []byte) error {
	documents := yaml.NewDecoder(bytes.NewReader(content))
	total := 0
	for {
		var n yaml.Node
		err := documents.Decode(&n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		c := counter{sizes: make(map[*yaml.Node]int), open: make(map[*yaml.Node]bool)}
		size, err := c.size(&n)
		if err != nil {
			return err
		}
		if total += size; total > maxNodes {
			return fmt.Errorf("more than %d nodes", maxNodes)
		}
	}
}

// counter counts nodes, each anchor's once.
type counter struct {
	sizes map[*yaml.Node]int
	open  map[*yaml.Node]bool
}

func (c *counter) size(n *yaml.Node) (int, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n == nil {
		return 1, nil
	}
	if c.open[n] {
		return 0, fmt.Errorf("line %d: the anchor %q contains itself", n.Line, n.Anchor)
	}
	if size, ok := c.sizes[n]; ok {
		return size, nil
	}
	c.open[n] = true
	defer delete(c.open, n)
	size := 1
	for _, child := range n.Content {
		s, err := c.size(child)
		if err != nil {
			return 0, err
		}
		if size += s; size > maxNodes {
			return 0, fmt.Errorf("line %d: more than %d nodes", n.Line, maxNodes)
		}
	}
	c.sizes[n] = size
	return size, nil
}
