package migrate

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// writeJSON writes a tree as JSON with kubectl's indentation, and keeps the order of
// keys.
func writeJSON(b *bytes.Buffer, n *yaml.Node) error {
	var compact bytes.Buffer
	if err := appendJSON(&compact, n); err != nil {
		return err
	}
	if err := json.Indent(b, compact.Bytes(), "", "    "); err != nil {
		return err
	}
	b.WriteByte('\n')
	return nil
}

func appendJSON(b *bytes.Buffer, n *yaml.Node) error {
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				b.WriteByte(',')
			}
			key, err := json.Marshal(n.Content[i].Value)
			if err != nil {
				return err
			}
			b.Write(append(key, ':'))
			if err := appendJSON(b, n.Content[i+1]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := appendJSON(b, item); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case yaml.ScalarNode:
		var value any
		if err := n.Decode(&value); err != nil {
			return err
		}
		enc := json.NewEncoder(b)
		enc.SetEscapeHTML(false)
		return enc.Encode(value)
	default:
		return fmt.Errorf("line %d: not JSON", n.Line)
	}
	return nil
}
