#include "suites.h"

#include <hyla/backend.h>
#include <hyla/error.h>

#include <algorithm>

#include "gpu_checks.h"
#include "testing/device_call.h"
#include "testing/random_problem.h"

namespace hyla::tool {
namespace {

// Every operation and every kind of argument, small enough for a few seconds on one core.
const std::vector<const char*> kQuick = {
    "gdn_decode:b=4,hq=4,hv=8",
    "gdn_decode:b=5,hq=2,hv=4,k=64,v=128,io=f16,state=bf16,layout=kv",
    "gdn_decode:b=3,hq=2,hv=6,k=40,v=24,io=f32,gate=log,beta=prob,norm=0",
    "gdn_decode:b=2,hq=2,hv=2,k=256,v=256,state=f16,gate=none,beta=none",
    "gdn_mtp:b=3,t=4,hq=2,hv=4",
    "gdn_mtp:b=3,t=8,hq=2,hv=4,k=64,v=64,mode=all,state=bf16",
    "gdn_mtp:lens=3+1+0+6,hq=2,hv=4,mode=accepted,layout=kv",
    "gdn_prefill:lens=65+0+130+1,hq=2,hv=4,checkpoint=64",
    "gdn_prefill:lens=100+29,hq=4,hk=2,hv=2,k=64,v=64,gate=raw,beta=logit,norm=1,layout=kv",
    "gdn_prefill:lens=200,hq=1,hv=2,io=f32,gate=log",
    "gdn_recurrence:lens=7+0+33+1,hq=2,hv=4",
    "gdn_recurrence:lens=5x6,hq=2,hv=4,k=64,v=64,io=f16,state=bf16,layout=vk,gate=raw,beta=logit",
    "conv_prefill:lens=70+0+3,hq=2,hv=4,k=64,v=64",
    "conv_prefill:lens=9+2,hq=1,hv=2,k=32,v=32,width=2,io=f32,state=f32",
    "conv_update:b=6,hq=2,hv=4,k=64,v=64",
    "conv_update:b=4,t=3,hq=2,hv=4,k=64,v=64,width=3,io=f16,state=f16",
    "norm_gated_rms:b=9,hv=8",
    "attention_decode:b=3,hq=8,hk=2,d=128,kvlen=1+700+97",
    "attention_decode:b=2,hq=8,hk=1,d=64,kvlen=300,page=64,kv=e4m3",
    "attention_decode:b=2,t=4,hq=4,hk=2,d=256,kvlen=129,page=0,kv=int8,io=f16",
    "attention_prefill:lens=40+0+90,hq=4,hk=2,d=64,mask=window,window=33",
    "attention_prefill:lens=30+8,kvlen=100,hq=4,hk=4,d=64,page=7,io=f32,kv=f16",
    "attention_append:lens=30+0+1,kvlen=40,hk=2,d=64,page=16,rope=halves",
    "attention_append:b=3,t=2,kvlen=20,hk=2,d=64,page=7,kv=e4m3,io=f16",
    "attention_append:lens=30+0+1,kvlen=40,hk=2,d=64,page=16,rope=pairs,by=slots",
    "attention_merge:b=9,hq=4,d=64",
};

// The layer of a Qwen3-Next: 16 key heads, 32 value heads, 128 x 128. One row's states stay in the
// cache, those of 64 rows do not.
const std::vector<const char*> kCpu = {
    "gdn_decode:b=1",
    "gdn_decode:b=1,state=bf16",
    "gdn_decode:b=1,layout=kv",
    "gdn_decode:b=64",
    "gdn_decode:b=64,state=bf16",
    "gdn_decode:b=64,layout=kv",
    "gdn_mtp:b=1,t=4",
    "gdn_mtp:b=64,t=4",
    "gdn_mtp:b=64,t=8",
    "gdn_mtp:b=16,t=4,mode=all",
    "gdn_prefill:lens=1024",
    "gdn_prefill:lens=64x16",
    "gdn_prefill:lens=1024,io=f32",
    "gdn_recurrence:lens=64x4",
    "conv_prefill:lens=256",
    "conv_update:b=32",
    "norm_gated_rms:b=32",
    "attention_decode:b=4,kvlen=1024",
    "attention_prefill:lens=64,hq=16,hk=2",
    "attention_append:lens=256,hk=2",
    "attention_append:b=32,kvlen=100,hk=2,rope=halves,kv=e4m3",
    "attention_append:b=32,kvlen=100,hk=2,by=slots",
    "attention_merge:b=256,hq=16,d=128",
};

// Prompts, and caches of 256 MB, which no CPU keeps.
const std::vector<const char*> kCpuLong = {
    "conv_prefill:lens=1024",
    "conv_prefill:lens=4096",
    "attention_decode:b=16,kvlen=8192,hq=16,hk=2,d=256",
    "attention_decode:b=16,kvlen=8192,hq=16,hk=2,d=256,page=64",
    "attention_decode:b=8,kvlen=16384,hq=32,hk=4,d=128",
    "attention_decode:b=8,kvlen=16384,hq=32,hk=4,d=128,page=64",
    "attention_decode:b=1,kvlen=131072,hq=32,hk=4,d=128,page=64",
    "attention_decode:b=8,t=4,kvlen=16384,hq=32,hk=4,d=128,page=64",
    "attention_decode:b=16,kvlen=8192,hq=16,hk=2,d=256,page=64,kv=e4m3",
    "attention_prefill:lens=2048,hq=16,hk=2,d=128",
    "attention_prefill:lens=2048,hq=16,hk=2,d=256",
    "attention_prefill:lens=2048,hq=16,hk=2,d=128,io=f32",
    "attention_append:lens=2048,hk=2,d=256",
    "attention_append:lens=2048,hk=2,d=256,rope=halves",
    "attention_append:lens=2048,hk=2,d=256,rope=halves,kv=e4m3",
};

// Decay makes numbers that are not normal, which processors compute slowly if one lets them.
const std::vector<const char*> kCpuTiny = {"gdn_decode", "gdn_mtp", "gdn_prefill:lens=1024"};

// The shapes of the tables that the library is measured by; operations join as their CUDA
// implementations do.
const std::vector<const char*> kGpu = {
    "gdn_decode:b=1,device=cuda",
    "gdn_decode:b=2,device=cuda",
    "gdn_decode:b=4,device=cuda",
    "gdn_decode:b=8,device=cuda",
    "gdn_decode:b=16,device=cuda",
    "gdn_decode:b=32,device=cuda",
    "gdn_decode:b=64,device=cuda",
    "gdn_decode:b=128,device=cuda",
    "gdn_decode:b=256,device=cuda",
    "gdn_decode:b=512,device=cuda",
    "gdn_decode:b=1,layout=kv,device=cuda",
    "gdn_decode:b=2,layout=kv,device=cuda",
    "gdn_decode:b=4,layout=kv,device=cuda",
    "gdn_decode:b=8,layout=kv,device=cuda",
    "gdn_decode:b=16,layout=kv,device=cuda",
    "gdn_decode:b=32,layout=kv,device=cuda",
    "gdn_decode:b=64,layout=kv,device=cuda",
    "gdn_decode:b=128,layout=kv,device=cuda",
    "gdn_decode:b=256,layout=kv,device=cuda",
    "gdn_decode:b=512,layout=kv,device=cuda",
    "gdn_decode:b=1,state=bf16,device=cuda",
    "gdn_decode:b=2,state=bf16,device=cuda",
    "gdn_decode:b=4,state=bf16,device=cuda",
    "gdn_decode:b=8,state=bf16,device=cuda",
    "gdn_decode:b=16,state=bf16,device=cuda",
    "gdn_decode:b=32,state=bf16,device=cuda",
    "gdn_decode:b=64,state=bf16,device=cuda",
    "gdn_decode:b=128,state=bf16,device=cuda",
    "gdn_decode:b=256,state=bf16,device=cuda",
    "gdn_decode:b=512,state=bf16,device=cuda",
    "gdn_decode:b=1,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=2,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=4,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=8,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=16,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=32,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=64,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=128,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=256,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=512,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=32,hq=4,hv=8,device=cuda",
    "gdn_decode:b=32,hq=8,hv=16,device=cuda",
    "gdn_decode:b=32,hq=16,hv=48,device=cuda",
    "gdn_decode:b=32,hq=16,hv=64,device=cuda",
    "gdn_decode:b=32,hq=4,hv=8,state=bf16,device=cuda",
    "gdn_decode:b=32,hq=8,hv=16,state=bf16,device=cuda",
    "gdn_decode:b=32,hq=16,hv=48,state=bf16,device=cuda",
    "gdn_decode:b=32,hq=16,hv=64,state=bf16,device=cuda",
    "gdn_decode:b=32,hq=4,hv=8,layout=kv,device=cuda",
    "gdn_decode:b=32,hq=8,hv=16,layout=kv,device=cuda",
    "gdn_decode:b=32,hq=16,hv=48,layout=kv,device=cuda",
    "gdn_decode:b=32,hq=16,hv=64,layout=kv,device=cuda",
    "gdn_decode:b=32,hq=4,hv=8,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=32,hq=8,hv=16,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=32,hq=16,hv=48,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=32,hq=16,hv=64,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=32,k=64,v=64,device=cuda",
    "gdn_decode:b=32,k=64,v=64,layout=kv,device=cuda",
    "gdn_decode:b=32,k=64,v=64,state=bf16,device=cuda",
    "gdn_decode:b=32,k=64,v=64,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=32,k=256,v=256,device=cuda",
    "gdn_decode:b=32,k=256,v=256,layout=kv,device=cuda",
    "gdn_decode:b=32,k=256,v=256,state=bf16,device=cuda",
    "gdn_decode:b=32,k=256,v=256,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=1,gated=1,device=cuda",
    "gdn_decode:b=8,gated=1,device=cuda",
    "gdn_decode:b=32,gated=1,device=cuda",
    "gdn_decode:b=32,gated=1,layout=kv,device=cuda",
    "gdn_decode:b=32,gated=1,state=bf16,device=cuda",
    "gdn_decode:b=1,gated=1,layout=kv,device=cuda",
    "gdn_decode:b=8,gated=1,layout=kv,device=cuda",
    "gdn_decode:b=1,gated=1,state=bf16,device=cuda",
    "gdn_decode:b=8,gated=1,state=bf16,device=cuda",
    "gdn_decode:b=1,gated=1,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=8,gated=1,layout=kv,state=bf16,device=cuda",
    "gdn_decode:b=128,gated=1,device=cuda",
    "gdn_mtp:b=8,t=2,device=cuda",
    "gdn_mtp:b=8,t=4,device=cuda",
    "gdn_mtp:b=8,t=8,device=cuda",
    "gdn_mtp:b=32,t=2,device=cuda",
    "gdn_mtp:b=32,t=4,device=cuda",
    "gdn_mtp:b=32,t=8,device=cuda",
    "gdn_mtp:b=128,t=2,device=cuda",
    "gdn_mtp:b=128,t=4,device=cuda",
    "gdn_mtp:b=128,t=8,device=cuda",
    "gdn_mtp:b=8,t=2,layout=kv,device=cuda",
    "gdn_mtp:b=8,t=8,layout=kv,device=cuda",
    "gdn_mtp:b=32,t=2,layout=kv,device=cuda",
    "gdn_mtp:b=32,t=4,layout=kv,device=cuda",
    "gdn_mtp:b=32,t=8,layout=kv,device=cuda",
    "gdn_mtp:b=128,t=8,layout=kv,device=cuda",
    "gdn_mtp:b=8,t=2,state=bf16,device=cuda",
    "gdn_mtp:b=8,t=4,state=bf16,device=cuda",
    "gdn_mtp:b=8,t=8,state=bf16,device=cuda",
    "gdn_mtp:b=32,t=2,state=bf16,device=cuda",
    "gdn_mtp:b=32,t=4,state=bf16,device=cuda",
    "gdn_mtp:b=32,t=8,state=bf16,device=cuda",
    "gdn_mtp:b=128,t=2,state=bf16,device=cuda",
    "gdn_mtp:b=128,t=8,state=bf16,device=cuda",
    "gdn_mtp:b=8,t=2,layout=kv,state=bf16,device=cuda",
    "gdn_mtp:b=8,t=8,layout=kv,state=bf16,device=cuda",
    "gdn_mtp:b=32,t=2,layout=kv,state=bf16,device=cuda",
    "gdn_mtp:b=32,t=4,layout=kv,state=bf16,device=cuda",
    "gdn_mtp:b=32,t=8,layout=kv,state=bf16,device=cuda",
    "gdn_mtp:b=128,t=8,layout=kv,state=bf16,device=cuda",
    "gdn_mtp:b=32,t=8,hq=4,hv=8,device=cuda",
    "gdn_mtp:b=32,t=8,hq=8,hv=16,device=cuda",
    "gdn_mtp:b=32,t=8,hq=16,hv=48,device=cuda",
    "gdn_mtp:b=32,t=8,hq=16,hv=64,device=cuda",
    "gdn_mtp:b=32,t=8,hq=4,hv=8,state=bf16,device=cuda",
    "gdn_mtp:b=32,t=8,hq=16,hv=64,state=bf16,device=cuda",
    "gdn_mtp:b=32,t=8,mode=accepted,device=cuda",
    "gdn_mtp:b=32,t=16,device=cuda",
    "gdn_mtp:b=32,t=4,mode=all,device=cuda",
    "gdn_mtp:b=32,t=8,mode=all,device=cuda",
    "gdn_mtp:b=128,t=4,mode=all,device=cuda",
    "gdn_mtp:b=128,t=8,mode=all,device=cuda",
    "gdn_recurrence:lens=1x64,device=cuda",
    "gdn_recurrence:lens=8x128,device=cuda",
    "gdn_recurrence:lens=8x128,layout=vk,device=cuda",
    "conv_prefill:lens=32768,device=cuda",
    "conv_prefill:lens=1024x8,device=cuda",
    "conv_update:b=512,device=cuda",
    "conv_update:b=128,device=cuda",
    "gdn_prefill:lens=64,device=cuda",
    "gdn_prefill:lens=256,device=cuda",
    "gdn_prefill:lens=2048,hq=2,hv=8,device=cuda",
    "gdn_prefill:lens=256x64,hq=2,hv=8,device=cuda",
    "gdn_prefill:lens=3000,hq=1,hv=2,device=cuda",
    "gdn_prefill:lens=16x8+3,hq=2,hv=4,device=cuda",
    "gdn_prefill:lens=700+64,hq=2,hv=4,k=64,v=64,device=cuda",
    "gdn_prefill:lens=300+70,hq=1,hv=2,k=96,v=192,layout=kv,device=cuda",
    "gdn_prefill:lens=130+65,hq=2,hv=2,k=128,v=256,norm=1,gate=raw,beta=logit,device=cuda",
    "gdn_prefill:lens=300+70,hq=1,hv=2,k=256,v=256,device=cuda",
    "gdn_prefill:lens=700+1,hq=1,hv=2,k=192,v=72,layout=kv,norm=1,gate=raw,beta=logit,device=cuda",
    "norm_gated_rms:b=128,device=cuda",
    "norm_gated_rms:b=8192,device=cuda",
    "conv_prefill:lens=128x64,device=cuda",
    "conv_update:b=512,channels_last=1,device=cuda",
    "conv_update:b=128,t=4,drafts=3,channels_last=1,device=cuda",
    "gdn_decode:pdl=1,device=cuda",
    "gdn_decode:b=8,pdl=1,device=cuda",
    "conv_update:device=cuda",
    "conv_update:pdl=1,device=cuda",
    "norm_gated_rms:device=cuda",
    "norm_gated_rms:pdl=1,device=cuda",
    "attention_decode:b=64,kvlen=8192,page=64,device=cuda",
    "attention_decode:b=64,kvlen=8192,page=256,device=cuda",
    "attention_decode:b=64,kvlen=8192,device=cuda",
    "attention_decode:b=128,hq=32,hk=8,d=128,kvlen=4096,page=64,device=cuda",
    "attention_decode:b=128,hq=32,hk=8,d=128,kvlen=4096,page=256,device=cuda",
    "attention_decode:b=128,hq=32,hk=8,d=128,kvlen=4096,device=cuda",
    "attention_decode:b=1,kvlen=131072,page=64,device=cuda",
    "attention_decode:b=64,kvlen=8192,page=64,kv=e4m3,device=cuda",
    "attention_decode:b=64,t=4,kvlen=8192,page=64,device=cuda",
    "attention_append:lens=8192x4,device=cuda",
    "attention_append:b=64,kvlen=100,device=cuda",
    "attention_append:lens=8192x4,rope=halves,device=cuda",
    "attention_append:lens=8192x4,kv=e4m3,device=cuda",
    "attention_append:lens=8192x4,kv=int8,rope=pairs,device=cuda",
    "attention_append:lens=8192x4,by=slots,device=cuda",
    "attention_append:b=64,kvlen=100,by=slots,device=cuda",
    "attention_append:b=64,kvlen=100,rope=halves,kv=e4m3,by=slots,device=cuda",
    "attention_merge:b=8192,hq=16,d=256,device=cuda",
    "attention_merge:b=4096,hq=32,d=128,device=cuda",
    "attention_merge:b=64,hq=16,d=256,device=cuda",
    "attention_prefill:lens=160+70,kvlen=300,hq=16,hk=2,d=256,page=64,device=cuda",
    "attention_prefill:lens=200+33,kvlen=250,hq=8,hk=2,d=128,page=16,io=f16,kv=f16,device=cuda",
    "attention_prefill:lens=150+90,hq=8,hk=2,d=64,page=1,mask=window,window=70,device=cuda",
    "attention_prefill:lens=160+70,kvlen=300,hq=16,hk=2,d=256,page=64,kv=e4m3,device=cuda",
    "attention_prefill:lens=200+33,kvlen=250,hq=8,hk=2,d=128,page=16,kv=int8,device=cuda",
    "attention_prefill:lens=60+20,kvlen=3000+1500,hq=16,hk=2,d=256,page=64,device=cuda",
    "attention_prefill:lens=90+1x6+4,kvlen=300,hq=16,hk=2,d=256,page=64,device=cuda",
};

// Chunked prefill: the shapes that others were measured with, from zero as they were; those that
// others publish, very short ones, one long among many short.
const std::vector<const char*> kPrefill = {
    "gdn_prefill:lens=32768,initial=0,device=cuda",
    "gdn_prefill:lens=8192,initial=0,device=cuda",
    "gdn_prefill:lens=2048,initial=0,device=cuda",
    "gdn_prefill:lens=8192x4,initial=0,device=cuda",
    "gdn_prefill:lens=1024x8,initial=0,device=cuda",
    "gdn_prefill:lens=16384x2,initial=0,device=cuda",
    "gdn_prefill:lens=256x64,initial=0,device=cuda",
    "gdn_prefill:lens=32768,hq=2,hv=8,initial=0,device=cuda",
    "gdn_prefill:lens=8192,hq=2,hv=8,initial=0,device=cuda",
    "gdn_prefill:lens=4096x8,hq=2,hv=8,initial=0,device=cuda",
    "gdn_prefill:lens=32768,hq=16,hv=64,initial=0,device=cuda",
    "gdn_prefill:lens=8192x4,hq=16,hv=64,initial=0,device=cuda",
    "gdn_prefill:lens=32768,hq=16,hv=48,initial=0,device=cuda",
    "gdn_prefill:lens=4096x8,hq=16,hv=48,initial=0,device=cuda",
    "gdn_prefill:lens=131072,hq=4,hv=8,initial=0,device=cuda",
    "gdn_prefill:lens=8192x4,device=cuda",
    "gdn_prefill:lens=1024x8,device=cuda",
    "gdn_prefill:lens=256x64,device=cuda",
    "gdn_prefill:lens=4096,device=cuda",
    "gdn_prefill:lens=16384,device=cuda",
    "gdn_prefill:lens=2048x4,device=cuda",
    "gdn_prefill:lens=4096x8,hq=8,hv=32,device=cuda",
    "gdn_prefill:lens=2048,hq=16,hv=64,device=cuda",
    "gdn_prefill:lens=8192,hq=16,hv=64,device=cuda",
    "gdn_prefill:lens=8192,hq=16,hv=16,device=cuda",
    "gdn_prefill:lens=32768,hq=4,hv=16,device=cuda",
    "gdn_prefill:lens=2048,hq=2,hv=8,device=cuda",
    "gdn_prefill:lens=4096,hq=2,hv=8,device=cuda",
    "gdn_prefill:lens=1024x8,hq=2,hv=8,device=cuda",
    "gdn_prefill:lens=64,device=cuda",
    "gdn_prefill:lens=256,device=cuda",
    "gdn_prefill:lens=16,device=cuda",
    "gdn_prefill:lens=16x64,device=cuda",
    "gdn_prefill:lens=64x64,device=cuda",
    "gdn_prefill:lens=64x8,device=cuda",
    "gdn_prefill:lens=16384+64x64,device=cuda",
    "gdn_prefill:lens=8192+512x16,hq=2,hv=8,device=cuda",
    "gdn_prefill:lens=8192,k=64,v=64,device=cuda",
    "gdn_prefill:lens=1024x8,k=64,v=64,device=cuda",
    "gdn_prefill:lens=8192,hq=8,hv=8,k=128,v=256,device=cuda",
    "gdn_prefill:lens=8192,k=256,v=256,device=cuda",
    "gdn_prefill:lens=8192x4,k=256,v=256,device=cuda",
    "gdn_prefill:lens=1024,k=256,v=256,device=cuda",
    "gdn_prefill:lens=8192x4,norm=1,gate=raw,beta=logit,initial=0,device=cuda",
};

// Attention prefill: the shapes of its targets, a chunk behind a long context, pages of one token,
// prompts beside decode rows, values of another width than keys.
const std::vector<const char*> kAttention = {
    "attention_prefill:lens=8192,hq=16,hk=2,d=256,page=64,device=cuda",
    "attention_prefill:lens=32768,hq=16,hk=2,d=256,page=64,device=cuda",
    "attention_prefill:lens=2048,kvlen=10240,hq=16,hk=2,d=256,page=64,device=cuda",
    "attention_prefill:lens=4096x4,hq=32,hk=8,d=128,page=64,device=cuda",
    "attention_prefill:lens=16384,hq=32,hk=8,d=128,page=64,device=cuda",
    "attention_prefill:lens=4096x4,hq=32,hk=8,d=64,page=64,device=cuda",
    "attention_prefill:lens=8192,hq=16,hk=2,d=256,page=1,device=cuda",
    "attention_prefill:lens=256,kvlen=33024,hq=16,hk=2,d=256,page=64,device=cuda",
    "attention_prefill:lens=8192,hq=16,hk=2,d=256,page=64,kv=e4m3,device=cuda",
    "attention_prefill:lens=8192,hq=16,hk=2,d=256,page=64,kv=int8,device=cuda",
    "attention_prefill:lens=4096x4,hq=32,hk=8,d=128,page=64,kv=e4m3,device=cuda",
    "attention_prefill:lens=4096x2+1x62,kvlen=8192,hq=16,hk=2,d=256,page=64,device=cuda",
    "attention_prefill:lens=64+1x15,kvlen=2000,hq=16,hk=2,d=256,page=64,device=cuda",
    "attention_prefill:lens=200+1x31,kvlen=1000,hq=32,hk=8,d=128,page=16,device=cuda",
    "attention_prefill:lens=8192,hq=16,hk=16,d=192,dv=128,page=64,device=cuda",
    "attention_decode:b=64,hq=16,hk=2,d=192,dv=128,kvlen=8192,page=64,device=cuda",
};

// Of one suite, or of several with commas between them.
std::vector<const Suite*> suites_of(const std::string& names) {
  std::vector<const Suite*> chosen;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const auto found = std::find_if(suites().begin(), suites().end(),
                                    [&](const Suite& s) { return s.name == name; });
    if (found == suites().end()) throw InvalidArgument("--suite", "one of " + suite_names(), name);
    chosen.push_back(&*found);
    begin = end + 1;
  }
  return chosen;
}

void require_room(const testing::ProblemSpec& spec) {
  require_device(spec);
  testing::check_memory(spec);
}

}  // namespace

const std::vector<Suite>& suites() {
  static const std::vector<Suite> all = {
      {"quick", "every operation, small", kQuick},
      {"cpu", "one layer's shapes on the CPU; to measure, also long rows", kCpu, kCpuLong,
       kCpuTiny},
      {"gpu",
       "CUDA: to measure, the shapes of the published tables; to check, small problems of all "
       "kinds",
       kGpu},
      {"prefill", "chunked prefill on a CUDA device; to measure, too long to check", kPrefill},
      {"attention", "attention of long rows on a CUDA device; to measure, too long to check",
       kAttention},
  };
  return all;
}

std::string suite_names() {
  std::string names;
  for (const Suite& suite : suites())
    names += (names.empty() ? "" : ", ") + std::string(suite.name);
  return names;
}

bool has_gpu() {
  const std::vector<DeviceInfo> all = devices();
  return std::any_of(all.begin(), all.end(), [](const DeviceInfo& info) {
    return info.device.kind == Device::Kind::kCuda;
  });
}

void require_device(const testing::ProblemSpec& spec) {
  if (spec.device == Device::Kind::kCuda && !has_gpu()) {
    throw InvalidArgument(
        "device", "a CUDA device for " + testing::to_string(spec),
        built_with_cuda() ? "no CUDA device" : "no CUDA device, and a build without CUDA");
  }
}

std::vector<testing::ProblemSpec> choose_problems(const std::vector<std::string>& problems,
                                                  const std::string& suite) {
  std::vector<testing::ProblemSpec> specs;
  for (const std::string& text : problems) specs.push_back(testing::parse_problem(text));
  if (problems.empty()) {
    for (const Suite* chosen : suites_of(suite)) {
      for (const char* text : chosen->problems) specs.push_back(testing::parse_problem(text));
      for (const char* text : chosen->long_problems) specs.push_back(testing::parse_problem(text));
    }
  }
  for (const testing::ProblemSpec& spec : specs) require_room(spec);
  return specs;
}

std::vector<BenchProblem> choose_benchmarks(const std::vector<std::string>& problems,
                                            const std::string& suite, bool tiny) {
  std::vector<BenchProblem> chosen;
  for (const testing::ProblemSpec& spec : choose_problems(problems, suite)) {
    chosen.push_back({spec, tiny});
  }
  if (!problems.empty() || tiny) return chosen;
  for (const Suite* each : suites_of(suite)) {
    for (const char* text : each->tiny_problems) {
      chosen.push_back({testing::parse_problem(text), true});
    }
  }
  return chosen;
}

std::vector<CheckedProblem> choose_checks(const std::vector<std::string>& problems,
                                          const std::string& suite, bool far) {
  std::vector<CheckedProblem> checks;
  for (const std::string& text : problems) checks.push_back({testing::parse_problem(text), far});
  if (problems.empty()) {
    for (const Suite* chosen : suites_of(suite)) {
      if (chosen->name == std::string("gpu")) {
        for (CheckedProblem& check : gpu_checks()) checks.push_back(std::move(check));
      } else {
        for (const char* text : chosen->problems) {
          checks.push_back({testing::parse_problem(text), far});
        }
      }
    }
  }
  for (const CheckedProblem& check : checks) require_room(check.spec);
  return checks;
}

void require_implementation(const testing::ProblemSpec& spec) {
  if (spec.impl.empty()) return;
  const std::vector<std::string> known = implementations(testing::library_name_of(spec.operation));
  if (std::find(known.begin(), known.end(), spec.impl) != known.end()) return;
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
  throw InvalidArgument("impl", "one of " + names, spec.impl);
}

std::vector<Candidate> explain(const testing::ProblemSpec& spec, const testing::Call& call) {
  if (spec.device == Device::Kind::kCpu) return testing::explain(call);
  return testing::DeviceCall(call).explain();
}

}  // namespace hyla::tool
