package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/nodens-dns/nodens/internal/state"
)

// Show shows the source in the terminal of this process until the user or ctx ends it.
func Show(ctx context.Context, source Source, window string) error {
	screen, err := tcell.NewScreen()
	if errors.Is(err, tcell.ErrTermNotFound) {
		if err := os.Setenv("TERM", "xterm"); err != nil {
			return err
		}
		screen, err = tcell.NewScreen()
	}
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		return fmt.Errorf("open the terminal: %w; -once prints the state without it", err)
	}
	defer screen.Fini()
	// The daemon's command keeps SIGHUP from ending the process.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	run(ctx, screen, source, window)
	return nil
}

// news is a report of a source: a state, or an error.
type news struct {
	state *state.State
	err   error
}

// run shows the source until the user quits, the screen closes, or ctx is done.
func run(ctx context.Context, screen tcell.Screen, source Source, window string) {
	ctx, cancel := context.WithCancel(ctx)
	states, events, quit, done := make(chan news), make(chan tcell.Event), make(chan struct{}), make(chan struct{})
	go screen.ChannelEvents(events, quit)
	go func() {
		defer close(done)
		follow(ctx, source, states)
	}()
	defer func() {
		cancel()
		close(quit)
		<-done
		for range events { // until ChannelEvents closes it
		}
	}()
	v := view{screen: screen, window: window}
	for {
		v.draw()
		select {
		case n := <-states:
			v.report(n)
		case e, ok := <-events:
			if !ok || v.handle(e) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// follow sends the reports of the source. After an error, it connects again each second.
func follow(ctx context.Context, source Source, to chan<- news) {
	send := func(n news) error {
		select {
		case to <- n:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		err := source(ctx, func(s *state.State) error { return send(news{state: s}) })
		if send(news{err: err}) != nil {
			return
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
	}
}

// view is what the screen shows.
type view struct {
	screen        tcell.Screen
	state, before *state.State // nil until the first state
	err           error        // of the connection
	window        string
	list, offset  int // the list, and its first row
	filter        string
	typing        bool // keys change the filter
}

func (v *view) report(n news) {
	if v.err = n.err; n.state != nil {
		v.before, v.state = v.state, n.state
	}
}

// handle handles an event. It reports whether the program should end.
func (v *view) handle(e tcell.Event) bool {
	if _, failed := e.(*tcell.EventError); failed {
		return true // the terminal has closed
	}
	key, ok := e.(*tcell.EventKey)
	if !ok {
		if _, resized := e.(*tcell.EventResize); resized {
			v.screen.Sync()
		}
		return false
	}
	_, height := v.screen.Size()
	switch key.Key() {
	case tcell.KeyCtrlC:
		return true
	case tcell.KeyTab, tcell.KeyRight:
		v.turn(1)
	case tcell.KeyBacktab, tcell.KeyLeft:
		v.turn(-1)
	case tcell.KeyUp:
		v.offset--
	case tcell.KeyDown:
		v.offset++
	case tcell.KeyPgUp:
		v.offset -= height / 2
	case tcell.KeyPgDn:
		v.offset += height / 2
	case tcell.KeyEscape:
		v.filter, v.typing = "", false
	case tcell.KeyEnter:
		v.typing = false
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		v.filter = v.filter[:max(len(v.filter)-1, 0)]
	case tcell.KeyRune:
		return v.rune(key.Rune())
	}
	return false
}

// rune handles a character. Its result is that of handle.
func (v *view) rune(r rune) bool {
	switch {
	case v.typing && r < 0x7f:
		v.filter += string(r)
	case v.typing:
	case r == '/':
		v.typing = true
	case r == 'q':
		return true
	case r == '1':
		v.window = "1m"
	case r == '5':
		v.window = "5m"
	case r == '6':
		v.window = "60m"
	}
	return false
}

// turn shows the list n places after the current one.
func (v *view) turn(n int) {
	all := len(lists(&state.State{}, ""))
	v.list, v.offset = (v.list+n+all)%all, 0
}

func (v *view) draw() {
	v.screen.Clear()
	defer v.screen.Show()
	plain := tcell.StyleDefault
	y := 0
	line := func(text string, style tcell.Style) {
		v.line(y, text, style)
		y++
	}
	if v.err != nil {
		line("no connection: "+Printable(v.err.Error()), plain.Bold(true))
	}
	if v.state == nil {
		line("waiting for the state of nodens; q quits", plain)
		return
	}
	for _, text := range summary(v.state, v.before) {
		line(text, plain.Bold(y == 0 || strings.HasPrefix(text, problem)))
	}
	y++
	all := lists(v.state, v.window)
	line(v.tabs(all), plain)
	rows := all[v.list].filtered(v.filter).lines()
	line(rows[0], plain.Reverse(true))
	_, height := v.screen.Size()
	room := max(height-y-1, 0)
	v.offset = max(min(v.offset, len(rows)-1-room), 0)
	for _, row := range rows[1+v.offset:][:min(room, len(rows)-1-v.offset)] {
		line(row, plain)
	}
	v.line(height-1, v.footer(), plain.Dim(true))
}

// line writes text into line y. It cuts text that does not fit.
func (v *view) line(y int, text string, style tcell.Style) {
	x := 0
	for _, r := range text {
		v.screen.SetContent(x, y, r, nil, style)
		x++
	}
}

// tabs returns the names of the lists, with the current one marked.
func (v *view) tabs(all []list) string {
	names := make([]string, len(all))
	for i, l := range all {
		if names[i] = " " + l.name + " "; i == v.list {
			names[i] = "[" + l.name + "]"
		}
	}
	return fmt.Sprintf("%s   last %s", strings.Join(names, " "), v.window)
}

func (v *view) footer() string {
	switch {
	case v.typing:
		return "filter: " + v.filter + "_   Enter keeps it, Esc clears it"
	case v.filter != "":
		return "filter: " + v.filter + "   Esc clears it"
	}
	return "q quit   Tab next list   1, 5, 60 minutes   / filter   ↑ ↓ scroll"
}
