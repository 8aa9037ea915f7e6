package client

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"byre/apiserver/storage/moment"
)

// MomentFlag is a flag that takes a moment.
type MomentFlag struct{ name, text string }

// AddTo adds the flag to a command. usage says what the moment is of: the forms follow it.
func (f *MomentFlag) AddTo(cmd *cobra.Command, name, usage string) {
	f.name = name
	cmd.Flags().StringVar(&f.text, name, "", usage+": "+moment.Help+".")
}

// Parse returns the moment; the zero one if the flag is not set. It prints the time that it is, in the zone of the
// process, unless the flag says just that.
func (f *MomentFlag) Parse(cmd *cobra.Command) (m moment.Moment, err error) {
	if !cmd.Flags().Changed(f.name) {
		return m, nil
	}
	if m, err = parseMoment("--"+f.name, f.text); err != nil {
		return m, err
	}
	if !m.Time.IsZero() && m.String() != f.text {
		fmt.Fprintf(cmd.ErrOrStderr(), "--%s %s is %s\n", f.name, f.text, m)
	}
	return m, nil
}

// parseMoment parses the moment of a flag or an argument, by the clock and the zone of the process.
func parseMoment(name, text string) (moment.Moment, error) {
	m, err := moment.Parse(text, time.Now())
	switch {
	case err != nil:
		return m, fmt.Errorf("%s: %w", name, err)
	case m.IsZero():
		return m, fmt.Errorf("%s: there is no revision 0: the first one is 1", name)
	}
	return m, nil
}
