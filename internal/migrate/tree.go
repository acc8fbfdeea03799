package migrate

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// find returns the value at a path of keys, or nil.
func find(n *yaml.Node, keys ...string) *yaml.Node {
	for _, k := range keys {
		if n = child(n, k); n == nil {
			return nil
		}
	}
	return n
}

func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	if i := index(n, key); i >= 0 && n.Content[i+1].Tag != "!!null" {
		return n.Content[i+1]
	}
	return nil // an empty value, too
}

// index returns the index of a key in a mapping's content, or -1.
func index(n *yaml.Node, key string) int {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// scalar returns the text at a path of keys, or "".
func scalar(n *yaml.Node, keys ...string) string {
	if n = find(n, keys...); n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// list returns the items at a path of keys.
func list(n *yaml.Node, keys ...string) []*yaml.Node {
	if n = find(n, keys...); n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

// texts returns the scalars of a list.
func texts(n *yaml.Node, keys ...string) []string {
	var all []string
	for _, i := range list(n, keys...) {
		all = append(all, i.Value)
	}
	return all
}

// set sets a key of a mapping, in its old place or at the end, and reports whether
// the value has changed.
func set(n *yaml.Node, key string, value any) bool {
	v := node(value)
	i := index(n, key)
	switch {
	case i < 0:
		n.Content = append(n.Content, node(key), v)
	case equal(n.Content[i+1], v):
		return false
	default:
		v.LineComment = n.Content[i+1].LineComment
		n.Content[i+1] = v
	}
	return true
}

// remove removes a key from a mapping and reports whether the mapping had it.
func remove(n *yaml.Node, key string) bool {
	i := index(n, key)
	if i < 0 {
		return false
	}
	n.Content = slices.Delete(n.Content, i, i+2)
	return true
}

// node returns value as a tree.
func node(value any) *yaml.Node {
	if n, ok := value.(*yaml.Node); ok {
		return n
	}
	n := new(yaml.Node)
	if err := n.Encode(value); err != nil {
		panic(err) // all values come from this package
	}
	return n
}

// pairs returns a mapping with keys and values in order.
func pairs(keysAndValues ...any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, v := range keysAndValues {
		n.Content = append(n.Content, node(v))
	}
	return n
}

// clone returns a copy of a tree.
func clone(n *yaml.Node) *yaml.Node {
	if n == nil {
		return nil
	}
	c := *n
	c.Content = make([]*yaml.Node, len(n.Content))
	for i := range n.Content {
		c.Content[i] = clone(n.Content[i])
	}
	return &c
}

// equal reports whether two trees have the same values.
func equal(a, b *yaml.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.Kind != b.Kind || a.Value != b.Value || len(a.Content) != len(b.Content) {
		return false
	}
	for i := range a.Content {
		if !equal(a.Content[i], b.Content[i]) {
			return false
		}
	}
	return true
}
