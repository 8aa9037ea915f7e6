package filters

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Options are the flags of request handling, with kube-apiserver's names and defaults.
type Options struct {
	// PriorityAndFairness turns API priority and fairness on. Without it, each of
	// the two limits below applies to its kind of request.
	PriorityAndFairness bool
	// MaxRequestsInFlight and MaxMutatingRequestsInFlight bound the requests in
	// flight. With priority and fairness, their sum is the server's total
	// concurrency. Without it, the first bounds read-only requests, the second
	// mutating ones, and 0 means no limit.
	MaxRequestsInFlight         int
	MaxMutatingRequestsInFlight int
	// RequestTimeout bounds every request that is not long-running.
	RequestTimeout time.Duration
	// MinRequestTimeout, in seconds, is the minimum duration of a watch. Package
	// endpoints uses it.
	MinRequestTimeout int
	// GoawayChance is the probability, 0 to 0.02, with which an HTTP/2 request is
	// answered with GOAWAY. The client then reconnects, possibly to another replica.
	GoawayChance float64
	// CORSAllowedOrigins are regular expressions; empty turns CORS off.
	CORSAllowedOrigins []string
	// HSTSDirectives are the directives of the Strict-Transport-Security header;
	// empty means no header.
	HSTSDirectives []string
	// ShutdownSendRetryAfter answers requests that arrive during the drain with 429
	// and Retry-After. Without it the listener refuses connections then.
	ShutdownSendRetryAfter bool
	// ShutdownWatchTerminationGracePeriod is how long a shutdown waits for watches
	// to end; 0 means that it does not wait.
	ShutdownWatchTerminationGracePeriod time.Duration
}

// NewOptions returns kube-apiserver's defaults.
func NewOptions() *Options {
	return &Options{
		PriorityAndFairness:         true,
		MaxRequestsInFlight:         400,
		MaxMutatingRequestsInFlight: 200,
		RequestTimeout:              time.Minute,
		MinRequestTimeout:           1800,
	}
}

// AddFlags adds the flags to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.PriorityAndFairness, "enable-priority-and-fairness", o.PriorityAndFairness,
		"Queue and dispatch requests by priority level and flow. If false, --max-requests-inflight and --max-mutating-requests-inflight are plain limits.")
	fs.IntVar(&o.MaxRequestsInFlight, "max-requests-inflight", o.MaxRequestsInFlight,
		"With --max-mutating-requests-inflight, the server's total concurrency under priority and fairness; without it, the limit on reading requests in flight (0: none).")
	fs.IntVar(&o.MaxMutatingRequestsInFlight, "max-mutating-requests-inflight", o.MaxMutatingRequestsInFlight,
		"With --max-requests-inflight, the server's total concurrency under priority and fairness; without it, the limit on writing requests in flight (0: none).")
	fs.DurationVar(&o.RequestTimeout, "request-timeout", o.RequestTimeout,
		"How long a request may take before it is answered with a timeout. Long-running requests (watch, exec, proxy, ...) are exempt.")
	fs.IntVar(&o.MinRequestTimeout, "min-request-timeout", o.MinRequestTimeout,
		"The least number of seconds for which a watch is kept open; the actual time is drawn between this and twice this.")
	fs.Float64Var(&o.GoawayChance, "goaway-chance", o.GoawayChance,
		"The share of HTTP/2 requests (0 to 0.02) whose connection is closed with GOAWAY, so that clients spread over replicas behind a load balancer. Leave at 0 for a single server.")
	fs.StringSliceVar(&o.CORSAllowedOrigins, "cors-allowed-origins", o.CORSAllowedOrigins,
		"Regular expressions of origins that may make cross-origin requests, each anchored at both ends of the host, such as '//example\\.com(:|$)'. Empty: CORS is off.")
	fs.StringSliceVar(&o.HSTSDirectives, "strict-transport-security-directives", o.HSTSDirectives,
		"Directives of the Strict-Transport-Security header, such as 'max-age=31536000,includeSubDomains,preload'. Empty: no header.")
	fs.BoolVar(&o.ShutdownSendRetryAfter, "shutdown-send-retry-after", o.ShutdownSendRetryAfter,
		"While requests in flight are drained at shutdown, answer new ones with 429 and Retry-After instead of refusing connections.")
	fs.DurationVar(&o.ShutdownWatchTerminationGracePeriod, "shutdown-watch-termination-grace-period", o.ShutdownWatchTerminationGracePeriod,
		"How long a shutdown waits for active watches to end. 0 doesn't wait for them.")
}

// Validate returns one error for each invalid flag.
func (o *Options) Validate() []error {
	var errs []error
	for _, check := range []struct {
		flag  string
		wrong bool
	}{
		{"max-requests-inflight", o.MaxRequestsInFlight < 0},
		{"max-mutating-requests-inflight", o.MaxMutatingRequestsInFlight < 0},
		{"request-timeout", o.RequestTimeout < 0},
		{"min-request-timeout", o.MinRequestTimeout < 0},
		{"shutdown-watch-termination-grace-period", o.ShutdownWatchTerminationGracePeriod < 0},
	} {
		if check.wrong {
			errs = append(errs, fmt.Errorf("--%s must not be negative", check.flag))
		}
	}
	if o.PriorityAndFairness && o.MaxRequestsInFlight+o.MaxMutatingRequestsInFlight <= 0 {
		errs = append(errs, errors.New("--max-requests-inflight and --max-mutating-requests-inflight must add up to more than 0 when --enable-priority-and-fairness is true"))
	}
	if o.GoawayChance < 0 || o.GoawayChance > 0.02 {
		errs = append(errs, fmt.Errorf("--goaway-chance must be between 0 and 0.02, not %v", o.GoawayChance))
	}
	for _, directive := range o.HSTSDirectives {
		if err := validateHSTS(directive); err != nil {
			errs = append(errs, err)
		}
	}
	for _, origin := range o.CORSAllowedOrigins {
		if err := validateOrigin(origin); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func validateHSTS(directive string) error {
	if directive == "includeSubDomains" || directive == "preload" {
		return nil
	}
	if age, ok := strings.CutPrefix(directive, "max-age="); ok && age != "" && !strings.Contains(age, "=") {
		return nil
	}
	return fmt.Errorf("--strict-transport-security-directives: %q is none of max-age=SECONDS, includeSubDomains, preload", directive)
}

// validateOrigin requires that the expression anchors both ends of the host: an
// unanchored one also matches a hostile origin that contains an allowed one
// (CVE-2022-1996).
func validateOrigin(origin string) error {
	if origin == "" {
		return errors.New("--cors-allowed-origins: an origin must not be empty")
	}
	if _, err := regexp.Compile(origin); err != nil {
		return fmt.Errorf("--cors-allowed-origins: %q is not a regular expression: %w", origin, err)
	}
	start := strings.Contains(origin, "^") || strings.Contains(origin, "//")
	end := strings.Contains(origin, "$") || strings.Contains(origin, ":")
	if !start || !end {
		return fmt.Errorf("--cors-allowed-origins: %q must pin the start ('^' or '//') and the end ('$' or ':') of the host", origin)
	}
	return nil
}
