package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"sigs.k8s.io/gateway-api-inference-extension/pkg/common/envoy"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/lwepp/datastore"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/lwepp/metadata"
)

// The suite names the endpoints that the picker may choose in this header: IP or
// IP:PORT, separated by commas.
const selectionHeader = "test-epp-endpoint-selection"

// picker chooses any endpoint of the pool that the request's header allows.
type picker struct{ pool datastore.Datastore }

// exchange is one request to the pool and its response.
type exchange struct {
	stream    extproc.ExternalProcessor_ProcessServer
	pool      datastore.Datastore
	selection string
	body      []byte // of the request, which is held until it has ended
}

func (p *picker) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	e := &exchange{stream: stream, pool: p.pool}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, answer := range e.answers(message) {
			if err := stream.Send(answer); err != nil {
				return err
			}
			if answer.GetImmediateResponse() != nil {
				return nil
			}
		}
	}
}

// answers returns what is sent when the message has come: head and body of the
// request once both are complete, everything of the response at once. Portcullis
// keeps trailers.
func (e *exchange) answers(message *extproc.ProcessingRequest) []*extproc.ProcessingResponse {
	switch part := message.Request.(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		e.selection = envoy.ExtractHeaderValue(part, selectionHeader)
		if part.RequestHeaders.EndOfStream {
			return []*extproc.ProcessingResponse{e.pick()}
		}
	case *extproc.ProcessingRequest_RequestBody:
		e.body = append(e.body, part.RequestBody.Body...)
		if part.RequestBody.EndOfStream {
			return append([]*extproc.ProcessingResponse{e.pick()}, envoy.GenerateRequestBodyResponses(e.body)...)
		}
	case *extproc.ProcessingRequest_ResponseHeaders:
		return []*extproc.ProcessingResponse{served(message)}
	case *extproc.ProcessingRequest_ResponseBody:
		return []*extproc.ProcessingResponse{unchanged(part.ResponseBody)}
	}
	return nil
}

// pick answers the head of the request with an endpoint, or with 503 if none is allowed.
func (e *exchange) pick() *extproc.ProcessingResponse {
	var allowed []string
	if e.selection != "" {
		allowed = strings.Split(e.selection, ",")
	}
	endpoints := e.pool.PodList(func(endpoint *datastore.Endpoint) bool {
		return allowed == nil || slices.Contains(allowed, endpoint.Address) || slices.Contains(allowed, address(endpoint))
	})
	if len(endpoints) == 0 {
		unavailable := &extproc.ImmediateResponse{Status: &envoytype.HttpStatus{Code: envoytype.StatusCode_ServiceUnavailable}}
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: unavailable}}
	}
	choice := address(endpoints[rand.IntN(len(endpoints))])
	head := &extproc.HeadersResponse{Response: set(metadata.DestinationEndpointKey, choice)}
	return &extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: head},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			metadata.DestinationEndpointNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				metadata.DestinationEndpointKey: structpb.NewStringValue(choice),
			}}),
		}},
	}
}

func address(endpoint *datastore.Endpoint) string {
	return net.JoinHostPort(endpoint.Address, endpoint.Port)
}

// served answers the head of the response with the endpoint that the gateway says
// it is from. The original also has the backend name it, and so does not show
// that the gateway did.
func served(message *extproc.ProcessingRequest) *extproc.ProcessingResponse {
	endpoint := "none was reported"
	if reported, ok := envoy.ExtractMetadataValues(message)[metadata.DestinationEndpointNamespace].(map[string]any); ok {
		if value, ok := reported[metadata.DestinationEndpointServedKey].(string); ok {
			endpoint = value
		}
	}
	head := &extproc.HeadersResponse{Response: set(metadata.ConformanceTestResultHeader, endpoint)}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: head}}
}

func unchanged(body *extproc.HttpBody) *extproc.ProcessingResponse {
	chunk := &extproc.BodyMutation_StreamedResponse{
		StreamedResponse: &extproc.StreamedBodyResponse{Body: body.Body, EndOfStream: body.EndOfStream},
	}
	response := &extproc.BodyResponse{Response: &extproc.CommonResponse{BodyMutation: &extproc.BodyMutation{Mutation: chunk}}}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: response}}
}

// set returns the mutation that sets one header.
func set(name, value string) *extproc.CommonResponse {
	header := &core.HeaderValueOption{Header: &core.HeaderValue{Key: name, RawValue: []byte(value)}}
	return &extproc.CommonResponse{HeaderMutation: &extproc.HeaderMutation{SetHeaders: []*core.HeaderValueOption{header}}}
}
