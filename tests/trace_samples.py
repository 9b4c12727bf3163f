"""Two requests or so in every format that is read."""

from __future__ import annotations

NATIVE = "prompt_tokens,output_tokens\n3,4\n5,6\n"
TIMED = "arrival_s,prompt_tokens,output_tokens\n0,3,4\n0.5,5,6\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 23:59:59.500000+00:00,12,5\n2024-05-11 00:00:00+00:00,13,6\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45.0,GPT-4,1087,230,1317,API log\n"
)
BURST_SESSIONS = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,a,1.5,ChatGPT,472,18,490,Conversation log\n45.0,,2,GPT-4,1087,230,1317,API log\n"
)
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n5.8926549999999995,396,109\n"
VIDUR_LENGTHS = (
    ",num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n0,374,44,418,8.5\n"
)
MOONCAKE = (
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 47, 48]}\n'
)
QWEN = (
    '{"chat_id": 7, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521, '
    '"output_length": 132, "type": "text", "turn": 1, "hash_ids": [9, 8]}\n'
    '{"chat_id": 8, "parent_chat_id": 7, "timestamp": 122.228, "input_length": 40, '
    '"output_length": 8, "type": "file", "turn": 2, "hash_ids": [9]}\n'
)
