package daemon

import (
	"context"
	"errors"
	"slices"
	"testing"
)

func TestStartUndoesInReverse(t *testing.T) {
	var log []string
	note := func(s string, err error) func(context.Context) error {
		return func(context.Context) error { log = append(log, s); return err }
	}
	bad, worse := errors.New("bad"), errors.New("worse")
	err := start(t.Context(), []step{
		{"one", note("+1", nil), note("-1", worse)},
		{"two", note("+2", nil), nil},
		{"three", nil, note("-3", nil)},
		{"four", note("+4", bad), note("-4", nil)},
		{"five", note("+5", nil), note("-5", nil)},
	})
	if want := []string{"+1", "+2", "+4", "-4", "-3", "-1"}; !slices.Equal(log, want) {
		t.Errorf("did %v, want %v", log, want)
	}
	if !errors.Is(err, bad) || !errors.Is(err, worse) {
		t.Errorf("error %v", err)
	}
}
