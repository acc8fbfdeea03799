package migrate

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// find goes down mappings by keys; nil if there is no such way.
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
	if i := index(n, key); i >= 0 {
		return n.Content[i+1]
	}
	return nil
}

// index is where a key is in a mapping's content; -1: nowhere.
func index(n *yaml.Node, key string) int {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// scalar is the text below keys; "" if there is none.
func scalar(n *yaml.Node, keys ...string) string {
	if n = find(n, keys...); n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// list are the items below keys.
func list(n *yaml.Node, keys ...string) []*yaml.Node {
	if n = find(n, keys...); n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}

// texts are the scalars of a list.
func texts(n *yaml.Node, keys ...string) []string {
	var all []string
	for _, i := range list(n, keys...) {
		all = append(all, i.Value)
	}
	return all
}

// set puts a value at a key of a mapping, in the place of the old one or at the
// end, and reports whether that changes anything.
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

// remove takes a key out of a mapping and reports whether it was there.
func remove(n *yaml.Node, key string) bool {
	i := index(n, key)
	if i < 0 {
		return false
	}
	n.Content = slices.Delete(n.Content, i, i+2)
	return true
}

// node makes a tree of a value; one that is a tree is taken as it is.
func node(value any) *yaml.Node {
	if n, ok := value.(*yaml.Node); ok {
		return n
	}
	n := new(yaml.Node)
	if err := n.Encode(value); err != nil {
		panic(err) // a value written in this package
	}
	return n
}

// pairs makes a mapping of keys and values, in order.
func pairs(keysAndValues ...any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, v := range keysAndValues {
		n.Content = append(n.Content, node(v))
	}
	return n
}

// equal tells whether two trees mean the same.
func equal(a, b *yaml.Node) bool {
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
