package config

import (
	"slices"
	"strings"
)

// parseLog reads log [NAMES… [FORMAT]] and the classes of replies to log.
func parseLog(b *Block, s statement) error {
	l := &Log{Line: s.line}
	if n := len(s.args); n > 0 && strings.Contains(s.args[n-1].text, "{") {
		if n == 1 { // CoreDNS reads it as a name and then logs nothing
			return s.errorf("a format must follow a name: log . %q", s.args[0].text)
		}
		l.Format, s.args = s.args[n-1].text, s.args[:n-1]
	}
	var err error
	if l.Names, err = parseZoneList(s, 0); err != nil {
		return err
	}
	if len(l.Names) == 0 {
		l.Names = []string{"."}
	}
	err = s.eachOption(func(name string) bool { return name == "class" }, func(o statement) error {
		if o.text != "class" {
			return o.unknown()
		}
		return parseLogClass(l, o)
	})
	if len(l.Classes) == 0 {
		l.Classes = []LogClass{LogAll}
	}
	b.Log = append(b.Log, l)
	return err
}

func parseLogClass(l *Log, o statement) error {
	if err := o.arity(1, -1, "all|success|denial|error…"); err != nil {
		return err
	}
	for _, arg := range o.args {
		switch class := LogClass(arg.text); class {
		case LogAll, LogSuccess, LogDenial, LogError:
			if !slices.Contains(l.Classes, class) {
				l.Classes = append(l.Classes, class)
			}
		default:
			return o.errorf("%q is not one of all, success, denial, error", arg.text)
		}
	}
	return nil
}
