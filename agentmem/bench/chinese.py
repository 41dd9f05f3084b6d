"""Chinese text of any length from tables of phrases: no machine is sure to hold any other.

It is grammatical and dull, and says nothing that a benchmark asks for.
"""

from __future__ import annotations

import random

_TIMES = (
    "清晨", "中午", "傍晚", "昨天下午", "上个星期", "去年冬天", "每逢雨季", "节日前夕", "十几年前",
    "那天夜里", "春天来临时", "假期的最后一天", "开学以后", "天气转凉的时候", "集市散了以后",
)  # fmt: skip
_PEOPLE = (
    "邻居家的老人", "年轻的老师", "几位渔民", "车站的售票员", "我的同学", "一对夫妇", "修表的师傅",
    "村里的孩子们", "图书管理员", "刚来的医生", "面包店的主人", "那位画家", "合唱团的成员",
    "退休的工程师", "骑自行车的邮差", "两个旅行者", "茶馆的伙计", "校长",
)  # fmt: skip
_PLACES = (
    "在河边", "在旧城墙下", "在火车站", "在图书馆的二楼", "在山脚的小路上", "在码头附近",
    "在院子里", "在菜市场", "在桥的另一头", "在博物馆门口", "在茶园里", "在安静的巷子里",
    "在学校的操场上", "在湖心的小岛上", "在厨房的窗前",
)  # fmt: skip
_DEEDS = (
    "谈论着今年的收成", "修理一扇坏了很久的木门", "画下了远处的屋顶", "等待最后一班渡船",
    "教大家辨认草药", "整理多年积累的信件", "练习一首古老的曲子", "把晒干的鱼收进竹篮",
    "商量怎样重修水渠", "讲起从前的一场大雪", "给花圃换上新的泥土", "寻找一本失踪的地图册",
    "准备晚上的灯会", "测量树干的粗细", "学着用毛笔写字", "为旅客煮了一大锅面条",
    "清点仓库里的木料", "记录每天的气温和风向",
)  # fmt: skip
_RESULTS = (
    "后来事情果然像他们预料的那样发展", "没有人觉得时间过得太慢", "大家都认为这个办法值得一试",
    "可是结果和预想的并不相同", "于是这个习惯一直保留到今天", "这让周围的人感到十分意外",
    "从此以后那里热闹了许多", "不过谁也说不清原因", "消息很快传遍了整条街",
    "第二天他们又回到了老地方", "人们渐渐明白了其中的道理", "这样一来花费就少了一半",
    "剩下的工作留给了明年", "最后他们决定再等一等",
)  # fmt: skip
_LINKS = (
    "因此", "然而", "不久", "据说", "后来", "其实", "有时候", "与此同时", "总的来说", "按照惯例",
)  # fmt: skip


def chinese_text(num_characters: int, *, seed: int = 0) -> str:
    """At least so many characters in paragraphs; the same for the same seed."""
    generator = random.Random(seed)
    paragraphs: list[str] = []
    length = 0
    while length < num_characters:
        paragraph = "".join(_sentence(generator) for _ in range(generator.randint(3, 7)))
        paragraphs.append(paragraph)
        length += len(paragraph) + 1
    return "\n".join(paragraphs)


def _sentence(generator: random.Random) -> str:
    draw = generator.choice
    clause = f"{draw(_TIMES)}，{draw(_PEOPLE)}{draw(_PLACES)}{draw(_DEEDS)}"
    form = generator.randrange(4)
    if form == 0:
        return f"{clause}，{draw(_RESULTS)}。"
    if form == 1:
        return f"{draw(_LINKS)}，{clause}。"
    if form == 2:
        return f"{clause}，{draw(_PEOPLE)}则{draw(_PLACES)}{draw(_DEEDS)}。"
    return f"{draw(_LINKS)}{draw(_RESULTS)}，因为{clause}。"
