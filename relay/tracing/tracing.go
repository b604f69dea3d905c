// Package tracing sends a trace span for each post and each poll to an OpenTelemetry collector, with OTLP over HTTP.
//
// A span continues the trace that the client names in the header traceparent (W3C Trace Context). It has the outcome,
// sizes and times of its request. It has no identity, no token, no query and no payload. Spans are sent in the
// background. If the collector does not keep up, spans are dropped, and requests do not wait.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Options are the settings of a Tracing.
type Options struct {
	URL     string            // of the collector, such as http://localhost:4318; the path defaults to /v1/traces
	Headers map[string]string // sent with each request to the collector, such as Authorization
	Ratio   float64           // share of the spans that are sent, from 0 to 1
	Build   string            // the program's version
	Log     *slog.Logger      // gets a line when spans cannot be sent, at most one a minute
}

// Tracing is a relay.Observer and an httpapi.Tracer. New creates one.
type Tracing struct {
	relay.NoObserver
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	context  propagation.TraceContext
}

var (
	_ relay.Observer = (*Tracing)(nil)
	_ httpapi.Tracer = (*Tracing)(nil)
)

// exportTimeout limits the time for sending a batch of spans.
const exportTimeout = 10 * time.Second

// New returns a Tracing. It does not connect yet. The caller must call Close.
func New(ctx context.Context, o Options) (*Tracing, error) {
	url := o.URL
	if _, rest, _ := strings.Cut(url, "://"); !strings.Contains(strings.TrimSuffix(rest, "/"), "/") {
		url = strings.TrimSuffix(url, "/") + "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(url), otlptracehttp.WithHeaders(o.Headers),
		otlptracehttp.WithTimeout(exportTimeout))
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(exporter, sdk.WithExportTimeout(exportTimeout)),
		sdk.WithSampler(sdk.ParentBased(share(o.Ratio), sdk.WithRemoteParentSampled(share(o.Ratio)))),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", "agora"),
			attribute.String("service.version", o.Build))),
	)
	otel.SetErrorHandler(&failures{log: o.Log}) // the SDK has no other way to report that spans were not sent
	return &Tracing{provider: provider, tracer: provider.Tracer("github.com/agora-relay/agora")}, nil
}

// share is a sdk.Sampler that sends this share of the spans, chosen at random. The samplers of the SDK decide by the id
// of the trace, or by a flag in the request. The client chooses both, so it could make the relay send all of its spans.
type share float64

// ShouldSample implements sdk.Sampler.
func (s share) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	result := sdk.SamplingResult{Decision: sdk.Drop, Tracestate: trace.SpanContextFromContext(p.ParentContext).TraceState()}
	if rand.Float64() < float64(s) {
		result.Decision = sdk.RecordAndSample
	}
	return result
}

// Description implements sdk.Sampler.
func (s share) Description() string { return fmt.Sprintf("share of %v", float64(s)) }

// Close sends the spans that have ended, and stops.
func (t *Tracing) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }

// Start implements httpapi.Tracer.
func (t *Tracing) Start(r *http.Request, route string) (context.Context, func(status int)) {
	method, path, _ := strings.Cut(route, " ")
	ctx := t.context.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := t.tracer.Start(ctx, route, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", method), attribute.String("http.route", path)))
	return ctx, func(status int) {
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// Posted implements relay.Observer. It describes a post in the span of ctx.
func (t *Tracing) Posted(ctx context.Context, p relay.PostReport) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("agora.code", string(p.Code)), attribute.Bool("agora.duplicate", p.Duplicate),
		attribute.Int("agora.bytes", p.Bytes), attribute.Float64("agora.check_seconds", p.Check.Seconds()),
		attribute.Float64("agora.store_seconds", p.Store.Seconds()))
}

// Delivered implements relay.Observer. It describes the answer to a poll in the span of ctx.
func (t *Tracing) Delivered(ctx context.Context, d relay.DeliveryReport) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.Int("agora.events", d.Events), attribute.Int("agora.bytes", d.Bytes),
		attribute.Bool("agora.waited", d.Waited), attribute.Float64("agora.wake_seconds", d.Wake.Seconds()))
}

// failureInterval is the time between two lines about spans that were not sent.
const failureInterval = time.Minute

// failures is an otel.ErrorHandler that logs.
type failures struct {
	log *slog.Logger

	mu       sync.Mutex
	loggedAt time.Time
}

// Handle implements otel.ErrorHandler.
func (f *failures) Handle(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.loggedAt) >= failureInterval {
		f.loggedAt = now
		f.log.Warn("traces were not sent", "err", err)
	}
}
