package migrate

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is a document of a YAML stream.
type document struct {
	separator string // the line before it; "" for a first document without one
	text      string
	first     int // line of text in the stream, from 1
	root      *yaml.Node
	objects   []*object
	edited    bool         // root has changed: write root
	inserted  []*yaml.Node // scalars that have got a line more in text
}

func (d *document) touched() bool { return d.edited || len(d.inserted) > 0 }

// insertedAbove returns the number of lines inserted into scalars above n.
func (d *document) insertedAbove(n *yaml.Node) int {
	count := 0
	for _, other := range d.inserted {
		if other.Line < n.Line {
			count++
		}
	}
	return count
}

// object is a Kubernetes object: a document, or an item of a List.
type object struct {
	*yaml.Node // its mapping
	doc        *document
	kind, name string
	namespace  string
}

func (o *object) String() string {
	return fmt.Sprintf("%s %s", o.kind, strings.TrimPrefix(o.namespace+"/"+o.name, "/"))
}

// split parses a stream.
func split(name, text string) ([]*document, error) {
	docs := []*document{{first: 1}}
	line := 0
	for s := range strings.Lines(text) {
		line++
		if rest, ok := strings.CutPrefix(s, "---"); ok && strings.TrimSpace(rest) == "" || ok && strings.HasPrefix(strings.TrimSpace(rest), "#") {
			docs = append(docs, &document{separator: s, first: line + 1})
			continue
		}
		docs[len(docs)-1].text += s
	}
	for _, d := range docs {
		if err := d.parse(name); err != nil {
			return nil, err
		}
	}
	return docs, nil
}

func (d *document) parse(name string) error {
	// The empty lines make line numbers those of the stream.
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(strings.Repeat("\n", d.first-1)+d.text), &root); err != nil {
		return fmt.Errorf("%s: %w%s", name, err, templateHint(d.text))
	}
	if root.Kind == 0 {
		return nil // comments only
	}
	d.root = &root
	top := root.Content[0]
	if top.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: not a Kubernetes object", name, top.Line)
	}
	d.addObjects(top)
	return nil
}

// templateHint says what to do if text is a template; otherwise it is "".
func templateHint(text string) string {
	if !strings.Contains(text, "{{") {
		return ""
	}
	return " (is it a template? render it first, for example with helm template)"
}

func (d *document) addObjects(n *yaml.Node) {
	o := &object{Node: n, doc: d, kind: scalar(n, "kind"), name: scalar(n, "metadata", "name"), namespace: scalar(n, "metadata", "namespace")}
	if items := find(n, "items"); strings.HasSuffix(o.kind, "List") && items != nil {
		for _, i := range items.Content {
			d.addObjects(i)
		}
		return
	}
	d.objects = append(d.objects, o)
}

// documents are the documents of one or more streams.
type documents []*document

// objects returns the objects of a kind.
func (ds documents) objects(kind string) []*object {
	var all []*object
	for _, d := range ds {
		for _, o := range d.objects {
			if o.kind == kind {
				all = append(all, o)
			}
		}
	}
	return all
}

// object finds an object; an empty namespace is "default".
func (ds documents) object(kind, namespace, name string) *object {
	for _, o := range ds.objects(kind) {
		if o.name == name && cmp.Or(o.namespace, "default") == cmp.Or(namespace, "default") {
			return o
		}
	}
	return nil
}

// untouched names the objects of documents that were not changed.
func (ds documents) untouched() []string {
	var names []string
	for _, d := range ds {
		if d.touched() {
			continue
		}
		for _, o := range d.objects {
			names = append(names, o.String())
		}
	}
	return names
}

// join writes a stream.
func (ds documents) join() (string, error) {
	var b strings.Builder
	for _, d := range ds {
		if s := b.String(); s != "" && !strings.HasSuffix(s, "\n") {
			b.WriteString("\n")
		}
		b.WriteString(d.separator)
		if !d.edited {
			b.WriteString(d.text)
			continue
		}
		text, err := d.encode()
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// encode writes the tree, as JSON if the document was JSON. In YAML it keeps the
// indentation of lists.
func (d *document) encode() (string, error) {
	var b bytes.Buffer
	if strings.HasPrefix(strings.TrimSpace(d.text), "{") {
		if err := writeJSON(&b, d.root.Content[0]); err != nil {
			return "", err
		}
		return b.String(), nil
	}
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if compact(d.root) >= 0 {
		enc.CompactSeqIndent()
	}
	if err := enc.Encode(d.root); err != nil {
		return "", err
	}
	return b.String(), enc.Close()
}

// compact returns the number of lists that are not indented below their key, minus
// the number of those that are.
func compact(n *yaml.Node) int {
	count := 0
	for i, c := range n.Content {
		count += compact(c)
		if n.Kind != yaml.MappingNode || i%2 == 0 || c.Kind != yaml.SequenceNode || c.Style&yaml.FlowStyle != 0 || c.Line == 0 {
			continue
		}
		if c.Column > n.Content[i-1].Column {
			count--
		} else {
			count++
		}
	}
	return count
}
