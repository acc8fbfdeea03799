package state

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

const (
	// DefaultAddress is the default of -status-address.
	DefaultAddress = "127.0.0.1:9354"
	// TokenHeader is the request header with the token. It is not Authorization, because
	// the API server's proxy removes that.
	TokenHeader = "X-Nodens-Token"
	// Path returns one State in JSON, EventsPath one per second.
	Path, EventsPath = "/api/v1/state", "/api/v1/events"
)

// maxState bounds the bytes of one State.
const maxState = 16 << 20

// Read reads one State in JSON.
func Read(r io.Reader) (*State, error) {
	s := new(State)
	if err := json.NewDecoder(io.LimitReader(r, maxState)).Decode(s); err != nil {
		return nil, fmt.Errorf("read the state of nodens: %w", err)
	}
	return s, nil
}

// Follow calls f with a State each second, until ctx is done, the daemon ends, or f
// returns an error.
func Follow(ctx context.Context, base, token string, f func(*State) error) error {
	body, err := open(ctx, base+EventsPath, token)
	if err != nil {
		return err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxState)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		s, err := Read(bytes.NewReader(data))
		if err == nil {
			err = f(s)
		}
		if err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the state of nodens: %w", err)
	}
	return io.ErrUnexpectedEOF
}

// open returns the body of a successful answer.
func open(ctx context.Context, url, token string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		r.Header.Set(TokenHeader, token)
	}
	// Without the proxy of the environment, which must not see the token.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		defer answer.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return nil, fmt.Errorf("%s: %s: %s", url, answer.Status, strings.TrimSpace(string(text)))
	}
	return answer.Body, nil
}
